"""Findings on two trials of a program: what its files, command and values show, and what its witness recorded."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from paribus.analysis.optimizer_findings import optimizer_findings
from paribus.analysis.tensor_comparison import TensorComparison, Tensors, compare_tensors
from paribus.analysis.trial_pair import Finding, TrialPair
from paribus.analysis.trials import TrialEntry
from paribus.errors import join_names
from paribus.program.input_files import input_names
from paribus.program.witness import TRAINING
from paribus.specs.program_spec import EFFECTS, PROGRAM
from paribus.studies.fractional_factorial import TIMES

MAX_NAMES: Final = 4
NO_EFFECT: Final = "no effect"
_MEASURED: Final = re.compile(
    r"time|second|_ms|speed|throughput|memory|mem_|date|elapsed|duration|gpu|cpu", re.IGNORECASE
)
WEIGHTS: Final = "initial weights"
EVALUATION: Final = "evaluation batches"
UNWITNESSED: Final = (WEIGHTS, "batches", "tokens", "targets", EVALUATION)
"""What makes a comparison fair, and what a program does not show by itself."""
KEYED: Final = "; `witness().initialise(model, seed)` draws each module's weights by its name"
FAILURES: Final = {
    "batches": "{}: a generator of its own for the data makes them equal",
    "budget": "other budget: {}",
    "optimizer": "other optimizer: {}",
}
"""Failures of what an option changes without saying so, by its effect."""


def unwitnessed(entry: TrialEntry) -> tuple[str, ...]:
    """Return what the witness of a trial did not record."""
    seen = entry.certificate.get("witness") or {}
    splits = seen.get("batches") or {}
    training = splits.get(TRAINING) or {"tokens": None, "targets": None}
    recorded = (
        bool(seen.get("tensors")) and not seen.get("late"),
        TRAINING in splits,
        training["tokens"] is not None,
        training["targets"] is not None,
        any(split != TRAINING for split in splits),
    )
    return tuple(name for name, is_recorded in zip(UNWITNESSED, recorded, strict=True) if not is_recorded)


def unwitnessed_by_pair(pair: TrialPair, tensors: TensorComparison) -> tuple[str, ...]:
    """Return what is not known to be equal in a pair: initial weights, too, if no drawn tensor is in both models."""
    missing = {*unwitnessed(pair.baseline), *unwitnessed(pair.variant)}
    drawn = {name for name, tensor in _tensors(pair.baseline).items() if tensor["signs"] and "buffer" not in tensor}
    if not (tensors.shared & drawn if drawn else tensors.shared):
        missing.add(WEIGHTS)
    splits = [set((entry.certificate.get("witness") or {}).get("batches") or ()) - {TRAINING} for entry in pair]
    if splits[0] != splits[1]:
        missing.add(EVALUATION)
    return tuple(name for name in UNWITNESSED if name in missing)


def witnessed_parameters(entry: TrialEntry) -> int | None:
    """Return the number of parameters of the model that a witness recorded; None without one."""
    tensors = ((entry.certificate.get("witness") or {}) if entry.record else {}).get("tensors") or {}
    counted = (tensor for tensor in tensors.values() if "buffer" not in tensor and "tied" not in tensor)
    return sum(math.prod(tensor["shape"]) for tensor in counted) or None


def witnessed_tensors(pair: TrialPair) -> TensorComparison:
    """Compare the initial weights that the witnesses of two trials recorded."""
    baseline, variant = (_tensors(entry) for entry in pair)
    if WEIGHTS in {*unwitnessed(pair.baseline), *unwitnessed(pair.variant)}:
        baseline, variant = {}, {}
    return compare_tensors(baseline, variant, scheme="weights" not in pair.effects)


def weight_findings(pair: TrialPair, tensors: TensorComparison) -> Iterator[Finding]:
    """Yield that the models differ in size, and that tensors have other draws, whether on purpose or not."""
    counts = [witnessed_parameters(entry) for entry in pair]
    if counts[0] and counts[1] and counts[0] != counts[1]:
        factor = f"{counts[1] / counts[0]:.3g}"
        yield (
            "side effect",
            f"{counts[1] - counts[0]:+,} parameters" if factor == "1" else f"{factor}{TIMES} parameters",
        )
    if tensors.leaked or tensors.reinitialised:
        yield "weights", ""


def _tensors(entry: TrialEntry) -> Tensors:
    """Return the tensors of a trial; equal names are drawn alike, and values may differ by a scale."""
    seen = entry.certificate.get("witness") or {}
    return {
        name: {**tensor, "draws": "", "initialisation": tensor["value"]}
        for name, tensor in (seen.get("tensors") or {}).items()
    }


def witness_findings(pair: TrialPair) -> Iterator[Finding]:
    """Yield what the batches and environments that the witnesses recorded show."""
    baseline, variant = (entry.certificate.get("witness") or {} for entry in pair)
    yield from _environment_findings(baseline.get("environment") or {}, variant.get("environment") or {})
    yield from optimizer_findings(pair)
    batches = baseline.get("batches") or {}, variant.get("batches") or {}
    for split in batches[0]:
        if split in batches[1]:
            yield from _batch_findings(pair, split, batches[0][split], batches[1][split])


def _environment_findings(baseline: Mapping[str, str], variant: Mapping[str, str]) -> Iterator[Finding]:
    common = [key for key in baseline if key in variant]
    differing = [f"{key} {baseline[key]} against {variant[key]}" for key in common if baseline[key] != variant[key]]
    if differing:
        yield "failure", f"other environment: {join_names(differing, MAX_NAMES)}"
    elif common:
        yield "confirmed", "same environment"


def _batch_findings(
    pair: TrialPair, split: str, baseline: Mapping[str, Any], variant: Mapping[str, Any]
) -> Iterator[Finding]:
    """Compare the batches of a split: as far as both trials ran, and their number if both ran to their end."""
    name = "batches" if split == TRAINING else f"{split} batches"
    if pair.baseline.done and pair.variant.done:
        for unit, count, other in ((unit, baseline[unit], variant[unit]) for unit in ("count", "tokens", "targets")):
            if None not in (count, other) and count != other:
                yield "budget", f"{count:,} {name if unit == 'count' else f'{unit} in {name}'} against {other:,}"
    if baseline["count"] == variant["count"]:
        digests, extent = (baseline["digest"], variant["digest"]), ""
    else:
        common = [count for count in baseline["digests"] if count in variant["digests"]]
        if not common:
            return
        last = max(common, key=int)
        digests, extent = (baseline["digests"][last], variant["digests"][last]), f", as far as compared ({last})"
    if digests[0] == digests[1]:
        yield "confirmed", f"same {name}{extent}"
    else:
        yield "batches", f"other {name}"


def judged(pair: TrialPair, findings: Iterable[Finding]) -> tuple[list[Finding], tuple[str, ...]]:
    """Return findings, where a difference is a failure unless an option has this effect on purpose, and the effects."""
    texts: dict[str, list[str]] = {}
    others: list[Finding] = []
    for kind, text in findings:
        if kind in EFFECTS:
            texts.setdefault(kind, []).append(text)
        else:
            others.append((kind, text))
    results: list[Finding] = [
        ("side effect", ", ".join(names))
        if kind in pair.effects
        else ("failure", FAILURES[kind].format(", ".join(names)))
        for kind, names in texts.items()
        if kind in FAILURES
    ]
    return [*others, *results], tuple(texts)


def program_findings(pair: TrialPair) -> Iterator[Finding]:
    """Yield what the records of two trials of a program show."""
    baseline, variant = pair
    metric = variant.spec[PROGRAM]["metric"]["name"]
    if baseline.done and variant.done and pair.equal("values"):
        keys = join_names(f"`{key}`" for key in sorted(pair.varied))
        if others := _other_numbers(pair, metric):
            text = f"{metric} is the same, and other numbers differ ({join_names(others, MAX_NAMES)})"
            yield "side effect", f"{text}: the metric is too coarse"
        else:
            text = f"{NO_EFFECT}: every value of {metric} is the baseline's; does the program read {keys}?"
            yield "failure", text
    names = input_names(variant.certificate["inputs"])
    if pair.equal("inputs") and names:
        yield "confirmed", f"same files ({join_names(names)})"
    programs = [str(entry.provenance.get("executable")) for entry in pair]
    if programs[0] != programs[1]:
        yield "failure", f"another program: {programs[0]} in the baseline, and {programs[1]}"
    commits = [(entry.provenance.get("source") or {}).get("commit") for entry in pair]
    if commits[0] != commits[1]:
        yield "side effect", "the two trials ran at different commits"


def _other_numbers(pair: TrialPair, metric: str) -> list[str]:
    """Return the numbers beside the metric that differ between two trials, without those of time and memory."""
    curves = [entry.result["curve"] for entry in pair]
    if len(curves[0]) != len(curves[1]):
        return []
    names = {
        key
        for points in zip(*curves, strict=True)
        for key in points[0].keys() & points[1].keys()
        if points[0][key] != points[1][key] and not _MEASURED.search(key)
    }
    return sorted(names - {metric, "step"})


def measured_steps(pair: TrialPair) -> Iterator[Finding]:
    """Yield that the last values of two trials are from different steps."""
    if pair.baseline.done and pair.variant.done and pair.steps[0] != pair.steps[1]:
        yield "budget", f"measured at step {pair.steps[1]:,} instead of {pair.steps[0]:,}"
