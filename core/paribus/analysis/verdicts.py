"""Verdicts on the variants of a study, which hold together with 95 % confidence."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
from paribus.analysis.verdict_words import MAX_SEEDS, MIN_PAIRS_FOR_ESTIMATE, Kind, describe_verdict

Better = Literal["lower", "higher"]
Name = TypeVar("Name", bound=Hashable)  # of a variant, or of a variant in a setting


@final
@dataclass(frozen=True, kw_only=True)
class PairedDifferences:
    """The differences of a variant from the baseline on the seeds that both finished, in the metric's unit.

    `diverged` counts the diverged trials of the variant, `baseline_diverged` those of the baseline. A seed may be in
    both counts; a seed in either has no difference. The other planned seeds were not run yet, or on one side only.
    `seeds` are the seeds of `differences`, by which outliers are named, after the word `label`. With `open_ended`,
    tests hold at every number of pairs at once, so pairs may be added after a verdict was seen.
    """

    differences: tuple[float, ...]
    diverged: int
    planned: int
    baseline_diverged: int = 0
    seeds: tuple[int, ...] = ()
    label: str = "seed"
    open_ended: bool = False

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
            summarise(self.differences)  # raises an error if one is not finite

    @cached_property
    def summary(self) -> Summary | None:
        """The statistics of the differences; None if no pair finished."""
        return summarise(self.differences) if self.differences else None

    @cached_property
    def outliers(self) -> tuple[int, ...]:
        """The seeds whose differences are outliers; without `seeds`, their indices."""
        indices = outliers(self.differences)
        return tuple(self.seeds[index] for index in indices) if self.seeds else indices

    def p_value(self, mean: float = 0.0) -> float:
        """Return the p-value of a true mean by a t-test; with outliers, at least that of the sign-flip test."""
        if self.summary is None or not self.is_decidable:
            return 1.0
        p = two_sided_p(self.summary, mean, open_ended=self.open_ended)
        return max(p, sign_flip_p(self.differences, mean)) if self.outliers else p

    def interval(self, alpha: float) -> tuple[float, float] | None:
        """Return the means that `p_value` does not reject at `alpha`; None where the pairs are too few."""
        bounds = interval(self.summary, alpha, open_ended=self.open_ended) if self.summary else None
        if bounds is None or not self.outliers:
            return bounds
        flipped = sign_flip_interval(self.differences, alpha)
        return None if flipped is None else (min(bounds[0], flipped[0]), max(bounds[1], flipped[1]))

    @property
    def is_decidable(self) -> bool:
        """Return whether a claim is possible: no trial diverged, and there are two pairs or more."""
        return not self.diverged and not self.baseline_diverged and len(self.differences) > 1


@final
@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on one variant. A verdict without an interval makes no claim.

    `low` and `high` are the interval at the confidence `level` of its step in Holm's procedure (0.9875 for the first
    of four). `p` is the smallest family-wise alpha at which the interval excludes 0: it is adjusted for the whole
    family, and is at most alpha exactly if the interval excludes 0.
    """

    kind: Kind
    text: str
    n: int
    difference: float | None
    low: float | None
    high: float | None
    level: float
    p: float | None
    needs: int | None = None  # of an inconclusive verdict: estimated seeds until it would be decided
    needs_range: tuple[int, int | None] | None = None  # `needs` for the ends of the 95 % interval of the spread
    outliers: tuple[int, ...] = ()  # seeds whose differences are outliers
    dropped: int = 0  # planned pairs without a difference, including diverged ones


def decide(
    comparisons: Mapping[Name, PairedDifferences], *, better: Better, margin: float | None, alpha: float = 0.05
) -> Mapping[Name, Verdict]:
    """Return a verdict for each variant; all of them together are right with probability 1 - `alpha`.

    Each verdict depends on one interval, and on the decision points 0 and, with a margin m, m and -m:

    - `identical` if the metrics of all pairs are equal to the bit, which says nothing about other seeds;
    - else `equivalent` if the interval lies inside ±m, even if it excludes 0: the study defined such differences as
      negligible;
    - else `better` or `worse` if it excludes 0;
    - else `inconclusive`, with an estimate of the seeds that would decide it, from three pairs on.

    A variant with diverged trials gets `diverged k/n` (`baseline diverged k/n` for the baseline's) whatever its
    interval. Its finished pairs are shown without a claim, because divergence selected them.

    **Family.** The p-value of a variant is the largest of the p-values of its decision points. Holm's procedure runs
    over them; without a margin, they are the usual p-values against 0. A variant is *settled* if the procedure rejects
    it, which is the case exactly if its interval contains no decision point. A settled variant has the level of its
    step. All others have the level of the step at which the procedure stops; they can still be `equivalent` (of either
    sign) or `better` (perhaps by less than the margin). A variant without a claim has the p-value 1, and still counts.

    **Claim.** Let K variants have a true difference that is a decision point. With probability 1 - alpha or more, all
    of their intervals contain their true differences, so that no verdict on them is wrong.

    **Proof**

    1. By Student's t, each of the K intervals at level alpha / K misses its true difference with probability alpha / K;
       widening it for outliers only lowers this. By the union bound, one or more of them miss with probability alpha at
       most, whatever the variants share, such as a baseline.
    2. Assume that none misses. When Holm's procedure reaches the first of the K variants, K or more hypotheses remain,
       so its level is alpha / K or stricter. Its interval contains its true difference, which is a decision point. So
       it is not rejected, and the procedure stops there or earlier.
    3. All K variants thus have the level of the step that stops, which is alpha / K or stricter. So all of their
       intervals contain their true differences.

    **Not covered**

    - True differences between decision points. They are further from a wrong claim than those of the K variants. That
      their error rate is within alpha is simulated in our tests, not proven; nor is it proven in general for the
      directions that Holm's procedure claims without a margin.
    - Divergence. A variant gets a claim only if no trial diverged, so the claim is about the mean over seeds that do
      not diverge.
    - Two families beside each other: Holm over the tests against 0 and Holm over the tests of equivalence, or Holm over
      the smaller of both p-values. Either would free alpha for variants that could still get a wrong claim.
    - Differences that are not symmetric between seeds: Student's t assumes that they are, without rare extreme seeds.
      With an outlier, the interval is widened until the sign-flip test agrees, which needs six pairs for one variant
      and eight for four. No test detects a failure that no seed of the sample had: `docs/error-rates.md` has the rates.
    - Seeds that are added until a verdict appears. The claim holds for seeds that were fixed in advance, and with
      `open_ended` for any: each of the K intervals then misses at one or more numbers of seeds with probability
      alpha / K, and the proof holds at all of them together. The sign-flip test of outliers only widens them.
    """
    if better not in ("lower", "higher"):
        raise ValueError(f"`better` must be `lower` or `higher`, but is {better!r}.")
    if margin is not None:
        check_positive("margin", margin)
    points = (0.0,) if margin is None else (0.0, margin, -margin)
    steps = holm([max(map(paired.p_value, points)) for paired in comparisons.values()], alpha)
    # The smallest family-wise alpha at which 0, 1, 2, … variants are settled.
    settling_alphas = [0.0, *sorted(step.adjusted for step in steps)]
    return {
        name: _verdict(paired, step=step, settling_alphas=settling_alphas, better=better, margin=margin)
        for (name, paired), step in zip(comparisons.items(), steps, strict=True)
    }


def _verdict(
    paired: PairedDifferences, *, step: HolmStep, settling_alphas: Sequence[float], better: Better, margin: float | None
) -> Verdict:
    summary = paired.summary
    bounds = paired.interval(step.alpha)
    low, high = bounds or (None, None)
    kind = _kind(paired, bounds, better=better, margin=margin)
    needs, needs_range = None, None
    if kind == "inconclusive" and summary is not None and summary.n >= MIN_PAIRS_FOR_ESTIMATE and not paired.outliers:
        count = partial(seeds_needed, alpha=step.alpha, margin=margin, limit=MAX_SEEDS, open_ended=paired.open_ended)
        needs = count(summary)
        needs_range = _needs_range(summary, needs, count)
    return Verdict(
        kind=kind,
        text=describe_verdict(kind, paired, needs, needs_range),
        n=len(paired.differences),
        difference=summary.mean if summary else None,
        low=low,
        high=high,
        level=1 - step.alpha,
        p=_adjusted(paired.p_value(), settling_alphas) if summary and paired.is_decidable else None,
        needs=needs,
        needs_range=needs_range,
        outliers=paired.outliers,
        dropped=paired.planned - len(paired.differences),
    )


def _needs_range(
    summary: Summary, needs: int | None, count: Callable[[Summary], int | None]
) -> tuple[int, int | None] | None:
    """Return the needed seeds for both ends of the 95 % interval of the standard deviation.

    The low end is at least one seed more than the pairs so far. The high end is None beyond `MAX_SEEDS`.
    """
    if needs is None or not summary.sd:
        return None
    low, high = (count(replace(summary, sd=sd)) for sd in spread_interval(summary.sd, summary.n))
    return min(needs, max(low or 0, summary.n + 1)), high


def _kind(
    paired: PairedDifferences, bounds: tuple[float, float] | None, *, better: Better, margin: float | None
) -> Kind:
    """Return the kind of a verdict: better, worse, equivalent, …"""
    if paired.diverged or paired.baseline_diverged:
        return "diverged"
    if len(paired.differences) > 1 and not any(paired.differences):
        return "identical"
    if bounds is None:
        return "inconclusive"
    low, high = bounds
    if margin is not None and -margin < low and high < margin:
        return "equivalent"
    if low <= 0 <= high:
        return "inconclusive"
    return "better" if (high < 0) == (better == "lower") else "worse"


def _adjusted(p: float, settling_alphas: Sequence[float]) -> float:
    """Return the smallest family-wise alpha at which `p` times the number of unsettled variants is at most alpha."""
    family = len(settling_alphas) - 1
    return min(1.0, *(max(alpha, (family - settled) * p) for settled, alpha in enumerate(settling_alphas[:-1])))
