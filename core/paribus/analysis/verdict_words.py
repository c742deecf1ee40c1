"""The kinds of verdicts, which `verdicts` decides, and their words in tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from paribus.errors import join_names

if TYPE_CHECKING:
    from paribus.analysis.verdicts import PairedDifferences

Kind = Literal["better", "worse", "equivalent", "identical", "inconclusive", "diverged"]
RowKind = Kind | Literal["withheld", "failed", "baseline"]

UNLEARNED: Final = "withheld (did not learn: no verdict)"
MIN_PAIRS_FOR_ESTIMATE: Final = 3  # with fewer, the spread is too uncertain to estimate the seeds that are needed
MAX_SEEDS: Final = 10_000  # no study is larger, and "needs n ≥ 84,213" would claim more precision than there is
MAX_OUTLIERS: Final = 4  # outlier seeds named in a verdict


def describe_verdict(
    kind: Kind, paired: PairedDifferences, needs: int | None, needs_range: tuple[int, int | None] | None
) -> str:
    """Return the words of a verdict by its kind, with outliers, or what it lacks."""
    if kind == "diverged":
        variant = f"diverged {paired.diverged}/{paired.planned}" if paired.diverged else ""
        baseline = f"baseline diverged {paired.baseline_diverged}/{paired.planned}" if paired.baseline_diverged else ""
        return ", ".join(filter(None, (variant, baseline)))
    if paired.outliers:
        return f"{kind} (outlier: {paired.label} {join_names(map(str, paired.outliers), MAX_OUTLIERS)})"
    if kind == "identical":
        return f"identical (in all {len(paired.differences)} pairs)"
    if kind != "inconclusive":
        return kind
    pairs = len(paired.differences)
    if pairs < MIN_PAIRS_FOR_ESTIMATE:
        return f"inconclusive (too few seeds: n = {pairs})"
    return f"inconclusive ({needs_text(needs, needs_range)})"


def needs_text(needs: int | None, needs_range: tuple[int, int | None] | None) -> str:
    """`needs n ≥ ~7 [6, 40]`: the seeds that would decide a verdict, with their uncertainty."""
    if needs is None:
        return f"needs n > {MAX_SEEDS:,}"
    if needs_range is None:
        return f"needs n ≥ ~{needs}"
    low, high = needs_range
    return f"needs n ≥ ~{needs} [{low}, {f'>{MAX_SEEDS:,}' if high is None else high}]"


def saturated_text(value: float) -> str:
    """Return the words of a verdict where every trial has the best value that the metric can have."""
    return f"identical (saturated: {value:g} on every seed)"


def pending_text(next_look: int) -> str:
    """Return the words of a verdict that is not final."""
    return f"inconclusive as yet (next look at {next_look} seeds)"


def withheld_text(reason: str) -> str:
    """Return the words of a verdict that a finding on the trials withholds."""
    return f"withheld ({reason})"


def failure_text(variant: Mapping[str, Any], baseline: Mapping[str, Any]) -> str:
    """`failed 2/2` if every trial of the variant or of the baseline failed, else an empty string."""
    sides = (("", variant), ("baseline ", baseline))
    return ", ".join(
        f"{side}failed {outcomes['failed']}/{outcomes['planned']}"
        for side, outcomes in sides
        if outcomes["failed"] == outcomes["planned"] > 0
    )
