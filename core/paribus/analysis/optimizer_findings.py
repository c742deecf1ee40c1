"""Findings on the optimizers that the witnesses of two trials recorded: their updates, options and learning rates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from paribus.analysis.trial_pair import Finding, TrialPair
from paribus.specs.diff import MISSING
from paribus.specs.tree import get_path

SKIPPED: Final = 0.05  # share of updates that a scaler of half-precision gradients may skip
ALL_OPTIONS: Final = {"optimizer", "optim", "opt"}  # words in the name of an option that may change all of them
WORDS: Final[Mapping[str, set[str]]] = {
    "lr": {"lr", "learning", "rate", "schedule", "scheduler", "sched", "warmup", "cooldown", "anneal"},
    "weight_decay": {"wd", "decay", "weightdecay"},
    "betas": {"beta", "beta1", "beta2", "betas"},
}
"""Words in the names of options of a program that are about an option of an optimizer, besides its own."""


def optimizer_findings(pair: TrialPair) -> Iterator[Finding]:
    """Yield what differs in the updates of two trials, unless the varied options name it."""
    baseline, variant = (recorded_optimizers(entry.certificate) for entry in pair)
    if not baseline or not variant:
        return
    counts = baseline["updates"], variant["updates"]
    if pair.baseline.done and pair.variant.done and counts[0] != counts[1]:
        is_skipped = abs(counts[0] - counts[1]) <= SKIPPED * max(counts)
        yield "side effect" if is_skipped else "budget", f"{counts[0]:,} updates against {counts[1]:,}"
    differing = [*_differing_options(pair, baseline["options"], variant["options"])]
    yield from (("optimizer", text) for text in differing)
    if baseline["options"] == variant["options"] and counts[0] == counts[1]:
        step = _differing_rate(baseline["rates"], variant["rates"])
        if step and not _is_named(pair, "lr"):
            yield "optimizer", f"another learning rate at update {step:,}"
        elif not step:
            yield "confirmed", "same optimizer"


def recorded_optimizers(certificate: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a witness recorded of the optimizers of a trial; empty if it saw no update."""
    optimizers: Mapping[str, Any] = (certificate.get("witness") or {}).get("optimizers") or {}
    return optimizers if optimizers.get("updates") else {}


def _differing_options(pair: TrialPair, baseline: Any, variant: Any) -> Iterator[str]:
    """Yield the options that differ at the first update, of each group of parameters that has others."""
    if len(baseline) != len(variant):
        if not any(_is_named(pair, name) for name in ("optimizer", *WORDS)):
            yield f"{len(baseline)} groups of parameters with other options against {len(variant)}"
        return
    texts: dict[str, None] = {}
    for options, others in zip(baseline, variant, strict=True):
        for name in options:
            values = options[name], others.get(name, options[name])
            if values[0] != values[1] and not _is_named(pair, name, values):
                texts[f"{name} {values[0]} against {values[1]}"] = None
    yield from texts


def _differing_rate(baseline: Mapping[str, Any], variant: Mapping[str, Any]) -> int:
    """Return the first recorded update with another learning rate, or 0."""
    return min((int(step) for step in baseline if step in variant and baseline[step] != variant[step]), default=0)


def _is_named(pair: TrialPair, name: str, values: tuple[Any, Any] | None = None) -> bool:
    """Return whether a varied option is an option of the optimizer, by its name or its values."""
    words = {*re.split(r"[^a-z0-9]+|_", name.lower()), *WORDS.get(name, ())}
    for key in pair.varied:
        key_words = set(re.split(r"[^a-z0-9]+|_", key.lower()))
        if key_words & (words | ALL_OPTIONS):
            return True
        given = tuple(get_path(entry.spec, key, MISSING) for entry in pair)
        if values is not None and given == values:
            return True
    return False
