"""Ratios of running times, from rounds that were timed one after the other on a noisy machine.

Consecutive rounds are correlated, because what slows one round slows the next. So the rounds are divided into batches
in time order, and the median of each batch is one observation: Student's t (Welch 1947) on the logarithms of these
(batch means: Law and Kelton, "Simulation Modeling and Analysis"). With three or more runs a side, the median of each
run is one observation instead.

Batches do not show a drift that is slower than a batch, and one run does not show the variation between runs. Two
estimates allow for this; they are not bounds, and were chosen on reports of unchanged code:

- The mean of a run is assumed to vary between runs with the variance of single batches, and with twice that variance if
  a side is one run.
- Other processes delay the fastest round least. So the interval is extended to the ratio of the fastest rounds, and the
  estimate closer to no difference is claimed.

The A/A of a benchmark compares the earlier half of a side with its later half. Both are the same code, so no smaller
difference is claimed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal, final

from paribus.analysis.p_values import holm, t_cdf, t_quantile

BATCHES: Final = 16
RUNS: Final = 3  # with this many runs on each side, a run is one observation
MIN_BATCHES: Final = 4  # two halves, each with a spread
DRIFT_QUANTILE: Final = 0.9  # of the differences between halves in all benchmarks
# Variance between runs, as a multiple of the variance of batches, for one run a side and for several.
BETWEEN_RUNS: Final = (2.0, 1.0)

Kind = Literal["slower", "faster", "inconclusive"]
Rounds = Sequence[float]  # seconds, in time order


@final
@dataclass(frozen=True, kw_only=True)
class Speed:
    """The ratio of times of one benchmark. Without an interval, no claim is made."""

    kind: Kind
    reason: str  # reason why it is inconclusive
    ratio: float | None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    p: float | None = None
    noise: float | None = None  # ratio of the A/A, the same code against itself: 1.05 is ±5 %


@final
@dataclass(frozen=True, kw_only=True)
class TimedRounds:
    """The rounds of one benchmark before and after, by run."""

    before: Sequence[Rounds]
    after: Sequence[Rounds]

    @property
    def logs(self) -> tuple[list[float], list[float]]:
        """Logarithms of the observations of each side: of runs if both sides have several, else of batches."""
        if self.by_run:
            baseline, candidate = ([statistics.median(run) for run in side] for side in (self.before, self.after))
            return _logarithms(baseline), _logarithms(candidate)
        return batch_logarithms(_all_rounds(self.before)), batch_logarithms(_all_rounds(self.after))

    @property
    def seconds(self) -> tuple[float | None, float | None]:
        """The time of a round on each side: the geometric mean of its observations."""
        baseline, candidate = (math.exp(statistics.fmean(side)) if side else None for side in self.logs)
        return baseline, candidate

    @property
    def fastest(self) -> float | None:
        """The logarithm of the ratio of the fastest rounds; None if observations are runs."""
        if self.by_run:
            return None
        baseline, candidate = (min(_all_rounds(side)) for side in (self.before, self.after))
        return math.log(candidate / baseline)

    @property
    def between_runs(self) -> float:
        """The variance between runs, as a multiple of the variance of batches; 0 if observations are runs."""
        return 0.0 if self.by_run else BETWEEN_RUNS[min(len(self.before), len(self.after)) > 1]

    @property
    def by_run(self) -> bool:
        """Return whether observations are runs, not batches."""
        return min(len(self.before), len(self.after)) >= RUNS and all(map(len, [*self.before, *self.after]))


@final
@dataclass(frozen=True, kw_only=True)
class _Welch:
    """The difference of two means, its standard error and degrees of freedom."""

    mean: float
    standard_error: float
    df: float
    counts: tuple[int, int]  # numbers of observations
    fastest: float | None = None  # difference of the fastest rounds, a second estimate

    @property
    def claimed(self) -> float:
        """The estimate closer to 0; 0 if the signs of both differ."""
        if self.fastest is None:
            return self.mean
        have_same_sign = self.mean * self.fastest > 0
        return math.copysign(min(abs(self.mean), abs(self.fastest)), self.mean) if have_same_sign else 0.0

    @property
    def p(self) -> float:
        # Without a spread, t is infinite; the permutation test has the p-value of two sides that separate completely.
        if self.standard_error == 0:
            return 1.0 if self.claimed == 0 else min(1.0, 2 / math.comb(sum(self.counts), self.counts[0]))
        return min(1.0, 2 * t_cdf(-abs(self.claimed) / self.standard_error, self.df))

    def interval(self, alpha: float) -> tuple[float, float]:
        half = -t_quantile(alpha / 2, self.df) * self.standard_error if self.standard_error else 0.0
        return min(self.mean, self.claimed) - half, max(self.mean, self.claimed) + half


def batch_logarithms(rounds: Rounds) -> list[float]:
    """Return the logarithms of the medians of consecutive batches; empty where a round took 0 s."""
    count = min(len(rounds), BATCHES)
    cuts = [index * len(rounds) // count for index in range(count + 1)] if count else []
    return _logarithms([statistics.median(rounds[start:end]) for start, end in pairwise(cuts)])


def judge_speeds(timed: Mapping[str, TimedRounds], *, alpha: float = 0.05) -> dict[str, Speed]:
    """Return a verdict for each benchmark; all of them hold together with probability 1 - `alpha`, by Holm."""
    logs = {name: rounds.logs for name, rounds in timed.items()}
    comparisons = {
        name: replace(_welch(*sides, timed[name].between_runs), fastest=timed[name].fastest)
        for name, sides in logs.items()
        if min(map(len, sides)) >= (RUNS if timed[name].by_run else MIN_BATCHES)
    }
    steps = dict(zip(comparisons, holm([welch.p for welch in comparisons.values()], alpha), strict=True))
    drift = _drift(
        [half for name in comparisons if timed[name].by_run for side in logs[name] for half in _half_difference(side)]
    )
    speeds: dict[str, Speed] = {}
    for name, sides in logs.items():
        if name not in comparisons:
            baseline, candidate = timed[name].seconds
            ratio = candidate / baseline if baseline and candidate else None
            speeds[name] = Speed(kind="inconclusive", reason=_reason_without_interval(timed[name]), ratio=ratio)
            continue
        welch, step = comparisons[name], steps[name]
        noise = drift if timed[name].by_run else max(_half_difference_limit(side, step.alpha) for side in sides)
        low, high = welch.interval(step.alpha)
        kind, reason = _kind(welch.claimed, noise, rejected=step.rejected)
        speeds[name] = Speed(
            kind=kind,
            reason=reason,
            ratio=math.exp(welch.mean),
            low=math.exp(low),
            high=math.exp(high),
            level=1 - step.alpha,
            p=step.adjusted,
            noise=math.exp(noise),
        )
    return speeds


def _kind(mean: float, noise: float, *, rejected: bool) -> tuple[Kind, str]:
    if not rejected:
        return "inconclusive", ""
    if abs(mean) <= noise:
        return "inconclusive", "no larger than the A/A"
    return ("slower" if mean > 0 else "faster"), ""


def _reason_without_interval(timed: TimedRounds) -> str:
    fewest = min(len(_all_rounds(side)) for side in (timed.before, timed.after))
    if fewest == 0:
        return "no rounds were saved"
    return f"too few rounds: n = {fewest}" if fewest < MIN_BATCHES else "rounds of 0 s: the clock is too coarse"


def _half_difference(logs: Sequence[float]) -> list[float]:
    """Return the difference between the means of the later and the earlier half of a side, or nothing for one value."""
    half = len(logs) // 2
    return [abs(statistics.fmean(logs[half:]) - statistics.fmean(logs[:half]))] if half else []


def _drift(differences: Sequence[float]) -> float:
    """Return the 90 % quantile of the differences between halves; 0 without any."""
    return sorted(differences)[math.ceil(DRIFT_QUANTILE * len(differences)) - 1] if differences else 0.0


def _half_difference_limit(logs: Sequence[float], alpha: float) -> float:
    """Return the larger absolute end of the interval of the difference between both halves of a side."""
    half = len(logs) // 2
    return max(map(abs, _welch(logs[:half], logs[half:]).interval(alpha)))


def _welch(baseline: Sequence[float], candidate: Sequence[float], between_runs: float = 0.0) -> _Welch:
    """Return Welch's comparison of two means; `between_runs` times the variance of each side is added to its mean's."""
    sides = (baseline, candidate)
    variances = [statistics.variance(side) * (1 / len(side) + between_runs) for side in sides]
    denominator = sum(variance**2 / (len(side) - 1) for variance, side in zip(variances, sides, strict=True))
    return _Welch(
        mean=statistics.fmean(candidate) - statistics.fmean(baseline),
        standard_error=math.sqrt(sum(variances)),
        df=sum(variances) ** 2 / denominator if denominator else len(baseline) + len(candidate) - 2.0,
        counts=(len(baseline), len(candidate)),
    )


def _all_rounds(runs: Sequence[Rounds]) -> list[float]:
    return [seconds for rounds in runs for seconds in rounds]


def _logarithms(seconds: Sequence[float]) -> list[float]:
    return [math.log(value) for value in seconds] if all(value > 0 for value in seconds) else []
