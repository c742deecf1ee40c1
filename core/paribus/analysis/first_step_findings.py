"""Findings on the first step of two trials: repeated in another process state, in another process, and by the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from paribus.analysis.trial_pair import UPDATES, Finding, TrialPair
from paribus.analysis.trials import TrialEntry
from paribus.errors import join_names
from paribus.evidence.property_names import UNCHECKED
from paribus.specs.diff import touches

IN_EVALUATION: Final = "torch, in evaluation"
"""Name of draws from torch's global generator in evaluation: a training step seeds it, and evaluation does not."""


def first_step_findings(pair: TrialPair) -> Iterator[Finding]:
    """Yield what differs in the first step of each trial when it is repeated, and between the two.

    A step that differs in another process state is not reproducible.
    """
    for entry in pair:
        yield from _repetition_findings(entry)
    yield from _rehearsal_findings(pair)
    yield from _shared_step_findings(pair)
    draws = [bool((entry.certificate.get("first_step") or {}).get("draws")) for entry in pair]
    if draws == [False, True] and not touches(pair.varied, ("dropout",)):
        yield "side effect", "random numbers in training"


def _repetition_findings(entry: TrialEntry) -> Iterator[Finding]:
    """Yield the findings of the repeated first step of a trial."""
    step = entry.certificate.get("first_step") or {}
    if UNCHECKED in step:
        yield "side effect", f"first step of {entry.variant} not repeated"
    if results := step.get("unrepeatable"):
        text = f"{join_names(results)} of the first step of {entry.variant} with another clock and other global seeds"
        cause = ", or it writes gradients in the backward pass" if results == ["gradients"] else ""
        yield "failure", f"not repeatable: other {text}{cause}"
    generators = sorted({*(step.get("generators") or ()), *(entry.certificate.get("generators") or ())})
    if used_generators := [name for name in generators if name != IN_EVALUATION]:
        yield (
            "failure",
            f"other random numbers: {entry.variant} uses global generators of {join_names(used_generators)}",
        )
    if settings := entry.certificate.get("settings"):
        yield "failure", f"other process: a step of {entry.variant} changes {join_names(settings)}"
    if IN_EVALUATION in generators:
        yield "failure", f"random numbers in evaluation: {entry.variant} draws from torch's global generator"


def _rehearsal_findings(pair: TrialPair) -> Iterator[Finding]:
    """Yield whether the first step of each trial is bitwise the same in another process and environment."""
    repeated = []
    for entry in pair:
        differing = _rehearsal_difference(entry)
        if differing == "":
            repeated.append(entry.variant)
        elif differing is not None:
            text = f"{differing} of the first step of {entry.variant} with another hash seed, time zone and environment"
            yield "failure", f"not repeatable: other {text}"
        elif "failure" in (entry.rehearsal or {}):
            yield "side effect", f"first step of {entry.variant} not repeated in another process"
    if repeated:
        noun = "first steps" if len(repeated) > 1 else f"first step of {repeated[0]}"
        yield "confirmed", f"{noun} repeated in another process"


def _rehearsal_difference(entry: TrialEntry) -> str | None:
    """Return the difference between a trial and its rehearsal: empty if there is none, None if they do not compare."""
    rehearsal = entry.rehearsal
    # A rehearsal has no parent, so it does not compare with a trial that starts from another one.
    if rehearsal is None or "failure" in rehearsal or entry.trial.get("parent_id"):
        return None
    if _on_other_machine(entry.provenance, rehearsal["provenance"]):
        return None
    if entry.provenance.get("hash_seed") == rehearsal["provenance"].get("hash_seed"):
        return None
    return _step_difference(entry, entry.certificate, rehearsal["certificate"])


def _shared_step_findings(pair: TrialPair) -> Iterator[Finding]:
    """Yield a first step that differs between two trials whose varied options only apply after its gradients."""
    if not pair.varied or not all(touches((key,), UPDATES) for key in pair.varied):
        return
    if any(entry.trial.get("parent_id") for entry in pair) or _on_other_machine(*(entry.provenance for entry in pair)):
        return
    if differing := _step_difference(pair.variant, pair.baseline.certificate, pair.variant.certificate):
        keys = join_names(sorted(pair.varied))
        yield "failure", f"other gradients: other {differing} of the first step, which {keys} cannot change"


def _on_other_machine(baseline: Mapping[str, Any], variant: Mapping[str, Any]) -> bool:
    """Return whether two provenances are of machines or libraries that may round differently."""
    return any(baseline.get(key) != variant.get(key) for key in ("host", "machine", "versions"))


def _step_difference(entry: TrialEntry, first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Return the difference between the first steps of two certificates.

    On an accelerator, equal steps may round differently, so only weights and batches are compared; None if they agree.
    """
    values = [{path: tensor["value"] for path, tensor in item["tensors"].items()} for item in (first, second)]
    if paths := _differing(*values):
        return f"initial weights ({paths[0]})"
    if (first.get("batch_digests") or {}).get("1") != (second.get("batch_digests") or {}).get("1"):
        return "batch"
    steps = [item.get("first_step") or {} for item in (first, second)]
    if entry.provenance["machine"]["device"] != "cpu" or any("loss" not in step for step in steps):
        return None
    names = [name for name in ("loss", "evaluation") if steps[0][name] != steps[1][name]]
    gradients = _differing(*(step.get("tensors") or {} for step in steps))
    return join_names([*names, *(f"gradients ({path})" for path in gradients[:1])])


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ, in order."""
    return [key for key in {**first, **second} if first.get(key) != second.get(key)]
