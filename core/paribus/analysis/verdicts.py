"""Verdicts on the variants of a study, which hold together with 95 % confidence."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeVar, final

from paribus.analysis.outliers import outliers, sign_flip_interval, sign_flip_p
from paribus.analysis.p_values import (
    HolmStep,
    Summary,
    check_positive,
    holm,
    interval,
    seeds_needed,
    summarise,
    two_sided_p,
)
from paribus.analysis.power import spread_interval
from paribus.errors import join_names

Kind = Literal["better", "worse", "equivalent", "inconclusive", "diverged"]
Better = Literal["lower", "higher"]
Name = TypeVar("Name", bound=Hashable)  # of a variant, or of a variant in a setting

LEAST_SEEDS = 3  # of which the spread gives an estimate of how many are needed
MOST_SEEDS = 10_000  # beyond it nobody runs a study, and "needs n ≥ 84,213" would claim a precision that it lacks
MAX_OUTLIERS = 4  # seeds that a verdict names


@final
@dataclass(frozen=True, kw_only=True)
class PairedDifferences:
    """The differences of a variant from the baseline on the seeds that both finished, in the metric's unit.

    `diverged` counts the diverged trials of the variant, `baseline_diverged` those of the baseline; a seed may be
    in both, and is in `differences` if in neither. The rest of `planned` is not run yet, or was run on one side
    only. `seeds` are those of the differences, to name outliers by.
    """

    differences: tuple[float, ...]
    diverged: int
    planned: int
    baseline_diverged: int = 0
    seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if min(self.diverged, self.baseline_diverged) < 0:
            raise ValueError(
                "`diverged` and `baseline_diverged` must be 0 or more, "
                f"but are {self.diverged} and {self.baseline_diverged}."
            )
        minimum = len(self.differences) + max(self.diverged, self.baseline_diverged)
        if self.planned < minimum:
            raise ValueError(
                f"`planned` must be at least {minimum}, the pairs that finished and those that diverged, "
                f"but is {self.planned}."
            )
        if self.differences:
            summarise(self.differences)  # refuses what is not finite

    @cached_property
    def summary(self) -> Summary | None:
        """The statistics of the differences, None where no pair finished."""
        return summarise(self.differences) if self.differences else None

    @cached_property
    def outliers(self) -> tuple[int, ...]:
        """The seeds whose differences are outliers."""
        places = outliers(self.differences)
        return tuple(self.seeds[place] for place in places) if self.seeds else places

    def p_value(self, mean: float = 0.0) -> float:
        """Return the p-value of a true mean: Student's, and beside an outlier the larger one of a sign-flip test."""
        if self.summary is None or not self.decidable:
            return 1.0
        p = two_sided_p(self.summary, mean)
        return max(p, sign_flip_p(self.differences, mean)) if self.outliers else p

    def interval(self, alpha: float) -> tuple[float, float] | None:
        """Return the means that `p_value` does not reject at `alpha`; None where the pairs are too few."""
        bounds = interval(self.summary, alpha) if self.summary else None
        if bounds is None or not self.outliers:
            return bounds
        flipped = sign_flip_interval(self.differences, alpha)
        return None if flipped is None else (min(bounds[0], flipped[0]), max(bounds[1], flipped[1]))

    @property
    def decidable(self) -> bool:
        """Whether a claim may be made at all: all trials finished, and there is a spread."""
        return not self.diverged and not self.baseline_diverged and len(self.differences) > 1


@final
@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on one variant. Without an interval nothing is claimed.

    `low` and `high` are the interval at the confidence `level` that decided (0.9875 for the first of four). `p` is
    the smallest alpha at which the study would have told the difference from 0: corrected for the whole family, so
    it is at most alpha exactly where the interval excludes 0.
    """

    kind: Kind
    text: str
    n: int
    difference: float | None
    low: float | None
    high: float | None
    level: float
    p: float | None
    needs: int | None = None  # seeds that would settle an inconclusive one, by the spread of the differences
    needs_range: tuple[int, int | None] | None = None  # for the ends of the 95 % interval of that spread
    outliers: tuple[int, ...] = ()  # seeds
    dropped: int = 0  # planned pairs without a difference, diverged ones included


def decide(
    comparisons: Mapping[Name, PairedDifferences], *, better: Better, margin: float | None, alpha: float = 0.05
) -> Mapping[Name, Verdict]:
    """One verdict for each variant, such that all of them together are right with probability 1 - `alpha`.

    Each is read off one interval. Its decision points are 0 and, where the study stated a margin, ±margin.

    - wholly inside ±margin: `equivalent`, even if it excludes 0, for the study said that so little is nothing;
    - else clear of 0: `better` or `worse`;
    - else `inconclusive`, with an estimate of the seeds that would settle it, if there are three pairs or more;
    - whatever the interval, `diverged k/n` where the variant (or the baseline: `baseline diverged k/n`) did so on some
      seed. What finished is shown, but nothing is claimed of it: divergence chose those seeds.

    **The family.** A variant is settled where its interval contains no decision point. Its p-value is the largest of
    those of its decision points, and Holm's procedure runs over these: without a margin it is the usual one. A settled
    variant is shown at the level of its step, the others at that of the step that stopped, where they too may be
    `equivalent` (of either sign) or `better` (perhaps by less than the margin).

    It holds whatever the variants share, such as their baseline. Let K of them truly lie at a decision point. With
    probability 1 - alpha the intervals of all K at alpha / K contain their points. Then none of them is ever settled,
    the procedure stops with K or more left, at alpha / K or a stricter level, and no interval of the K claims what is
    not so. A true difference between decision points is further from a wrong claim than one at them; that it is safe as
    well is simulated in our tests, not proven (nor is it, in general, for the directions of the usual procedure). What
    would not hold: Holm over the tests against 0 and, beside it, over those of equivalence, or over the smaller p-value
    of the two. Both free alpha for variants about which a wrong claim is still possible.

    **What it assumes.** The promise is about the mean over seeds, and Student's t needs differences that vary
    symmetrically, without rare extreme seeds. Where a difference is an outlier, the interval is widened to hold by the
    sign-flip test as well, which needs six pairs for one variant and eight for four. No test detects a failure that no
    seed of the sample had: `docs/error-rates.md` has the rates.

    Every variant counts in the family, and one of which nothing may be claimed frees no alpha. The promise is for seeds
    that were fixed beforehand: adding some until the verdict pleases voids it.
    """
    if better not in ("lower", "higher"):
        raise ValueError(f"`better` must be `lower` or `higher`, but is {better!r}.")
    if margin is not None:
        check_positive("margin", margin)
    points = (0.0,) if margin is None else (0.0, margin, -margin)
    steps = holm([_p_value(paired, points) for paired in comparisons.values()], alpha)
    passed = [0.0, *sorted(step.adjusted for step in steps)]  # the alpha from which on 0, 1, 2 … variants are settled
    return {
        name: _verdict(paired, step=step, passed=passed, better=better, margin=margin)
        for (name, paired), step in zip(comparisons.items(), steps, strict=True)
    }


def _p_value(paired: PairedDifferences, points: Sequence[float]) -> float:
    """The p-value of the true difference being one of `points`."""
    return max(paired.p_value(point) for point in points)


def _verdict(
    paired: PairedDifferences, *, step: HolmStep, passed: Sequence[float], better: Better, margin: float | None
) -> Verdict:
    summary = paired.summary
    bounds = paired.interval(step.alpha)
    low, high = bounds or (None, None)
    kind = _kind(paired, bounds, better=better, margin=margin)
    needs, needs_range = None, None
    if kind == "inconclusive" and summary is not None and summary.n >= LEAST_SEEDS and not paired.outliers:
        needs = seeds_needed(summary, alpha=step.alpha, margin=margin, limit=MOST_SEEDS)
        needs_range = _needs_range(summary, needs, alpha=step.alpha, margin=margin)
    return Verdict(
        kind=kind,
        text=_text(kind, paired, needs, needs_range),
        n=len(paired.differences),
        difference=summary.mean if summary else None,
        low=low,
        high=high,
        level=1 - step.alpha,
        p=_adjusted(paired.p_value(), passed) if summary and paired.decidable else None,
        needs=needs,
        needs_range=needs_range,
        outliers=paired.outliers,
        dropped=paired.planned - len(paired.differences),
    )


def _needs_range(
    summary: Summary, needs: int | None, *, alpha: float, margin: float | None
) -> tuple[int, int | None] | None:
    """Return the needed seeds for the ends of the 95 % interval of the standard deviation; None beyond `MOST_SEEDS`.

    The low end is at least one seed more than there are.
    """
    if needs is None or not summary.sd:
        return None
    low, high = (
        seeds_needed(replace(summary, sd=sd), alpha=alpha, margin=margin, limit=MOST_SEEDS)
        for sd in spread_interval(summary.sd, summary.n)
    )
    return min(needs, max(low or 0, summary.n + 1)), high


def _kind(
    paired: PairedDifferences, bounds: tuple[float, float] | None, *, better: Better, margin: float | None
) -> Kind:
    if paired.diverged or paired.baseline_diverged:
        return "diverged"
    if bounds is None:
        return "inconclusive"
    low, high = bounds
    if margin is not None and -margin < low and high < margin:
        return "equivalent"
    if low <= 0 <= high:
        return "inconclusive"
    return "better" if (high < 0) == (better == "lower") else "worse"


def _adjusted(p: float, passed: Sequence[float]) -> float:
    """The smallest alpha at which `p`, times the variants not settled by then, is at most alpha."""
    family = len(passed) - 1
    return min(1.0, *(max(alpha, (family - settled) * p) for settled, alpha in enumerate(passed[:-1])))


def _text(kind: Kind, paired: PairedDifferences, needs: int | None, needs_range: tuple[int, int | None] | None) -> str:
    if kind == "diverged":
        variant = f"diverged {paired.diverged}/{paired.planned}" if paired.diverged else ""
        baseline = f"baseline diverged {paired.baseline_diverged}/{paired.planned}" if paired.baseline_diverged else ""
        return ", ".join(filter(None, (variant, baseline)))
    if paired.outliers:
        return f"{kind} (outlier: seed {join_names(map(str, paired.outliers), MAX_OUTLIERS)})"
    if kind != "inconclusive":
        return kind
    pairs = len(paired.differences)
    if needs is None and pairs > 1 and not any(paired.differences):
        return f"inconclusive (no difference in any of {pairs} pairs)"
    if pairs < LEAST_SEEDS:
        return f"inconclusive (too few seeds: n = {pairs})"
    return f"inconclusive ({needs_text(needs, needs_range)})"


def needs_text(needs: int | None, needs_range: tuple[int, int | None] | None) -> str:
    """`needs n ≥ ~7 [6, 40]`: the seeds that would settle a verdict, with their uncertainty."""
    if needs is None:
        return f"needs n > {MOST_SEEDS:,}"
    if needs_range is None:
        return f"needs n ≥ ~{needs}"
    low, high = needs_range
    return f"needs n ≥ ~{needs} [{low}, {f'>{MOST_SEEDS:,}' if high is None else high}]"
