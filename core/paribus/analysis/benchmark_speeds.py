"""Ratios of running times, from rounds that were timed one after the other on a noisy machine.

Consecutive rounds are correlated: whatever slows one round slows the next. So rounds are cut into batches in time
order, and a batch counts once, by its median: Student's t (Welch 1947) on the logarithms of these (batch means: Law and
Kelton, "Simulation Modeling and Analysis"). With three or more runs a side, a run counts once.

These intervals do not show drift that is slower than a batch, and one run does not show the variation between runs. So
the mean of a run is assumed to vary from run to run with the variance of single batches, and with twice that where a
side is one run. Time that the code takes is in the fastest round too, which other processes only delay: the interval
reaches to the ratio of the fastest rounds, and the estimate nearer to no difference is claimed. Both are estimates, not
bounds, chosen on reports of unchanged code. The A/A of a benchmark compares the earlier half of one side with its later
half, which are the same code; no difference within it is claimed.
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
RUNS: Final = 3  # of a side, from which on a run is what counts once
LEAST: Final = 4  # batches: two halves, each with a spread
SHARE: Final = 0.9  # of the halves of all benchmarks
BETWEEN: Final = (2.0, 1.0)  # times the variance of batches: how far one run strays from the next, and one of several

Kind = Literal["slower", "faster", "inconclusive"]
Rounds = Sequence[float]  # seconds, in time order


@final
@dataclass(frozen=True, kw_only=True)
class Speed:
    """The ratio of times of one benchmark. Without an interval nothing is claimed."""

    kind: Kind
    reason: str  # it is inconclusive
    ratio: float | None
    low: float | None = None
    high: float | None = None
    level: float | None = None
    p: float | None = None
    noise: float | None = None  # the ratio by which the same code strays from itself: 1.05 is ±5 %


@final
@dataclass(frozen=True, kw_only=True)
class TimedRounds:
    """The rounds of one benchmark before and after, by run."""

    before: Sequence[Rounds]
    after: Sequence[Rounds]

    @property
    def logs(self) -> tuple[list[float], list[float]]:
        """Logarithms of what counts once on each side: runs where both sides have several, else batches."""
        if self.by_run:
            baseline, candidate = ([statistics.median(run) for run in side] for side in (self.before, self.after))
            return _logarithms(baseline), _logarithms(candidate)
        return batch_logarithms(_joined(self.before)), batch_logarithms(_joined(self.after))

    @property
    def seconds(self) -> tuple[float | None, float | None]:
        """The time of a round on each side: the geometric mean of the medians that count."""
        baseline, candidate = (math.exp(statistics.fmean(side)) if side else None for side in self.logs)
        return baseline, candidate

    @property
    def fastest(self) -> float | None:
        """The logarithm of the ratio of the fastest rounds; None where runs are what counts."""
        if self.by_run:
            return None
        baseline, candidate = (min(_joined(side)) for side in (self.before, self.after))
        return math.log(candidate / baseline)

    @property
    def between(self) -> float:
        """The variance between runs, as a multiple of the variance of batches; 0 where runs count."""
        return 0.0 if self.by_run else BETWEEN[min(len(self.before), len(self.after)) > 1]

    @property
    def by_run(self) -> bool:
        return min(len(self.before), len(self.after)) >= RUNS and all(map(len, [*self.before, *self.after]))


@final
@dataclass(frozen=True, kw_only=True)
class _Welch:
    """The difference of two means, its standard error and degrees of freedom."""

    mean: float
    error: float
    freedom: float
    sides: tuple[int, int]
    fastest: float | None = None  # another measure of the same difference

    @property
    def least(self) -> float:
        """The smaller of both estimates of the difference; 0 where their signs differ."""
        if self.fastest is None:
            return self.mean
        agreed = self.mean * self.fastest > 0
        return math.copysign(min(abs(self.mean), abs(self.fastest)), self.mean) if agreed else 0.0

    @property
    def p(self) -> float:
        if self.error == 0:  # nothing varies: how likely two sides are told apart by chance (permutations)
            return 1.0 if self.least == 0 else min(1.0, 2 / math.comb(sum(self.sides), self.sides[0]))
        return min(1.0, 2 * t_cdf(-abs(self.least) / self.error, self.freedom))

    def interval(self, alpha: float) -> tuple[float, float]:
        half = -t_quantile(alpha / 2, self.freedom) * self.error if self.error else 0.0
        return min(self.mean, self.least) - half, max(self.mean, self.least) + half


def batch_logarithms(rounds: Rounds) -> list[float]:
    """Return the logarithms of the medians of consecutive batches; empty where a round took 0 s."""
    count = min(len(rounds), BATCHES)
    cuts = [index * len(rounds) // count for index in range(count + 1)] if count else []
    return _logarithms([statistics.median(rounds[start:end]) for start, end in pairwise(cuts)])


def judge_speeds(timed: Mapping[str, TimedRounds], *, alpha: float = 0.05) -> dict[str, Speed]:
    """Return a verdict for each benchmark; all of them together hold at 95 % by Holm's procedure."""
    logs = {name: rounds.logs for name, rounds in timed.items()}
    judged = {
        name: replace(_welch(*sides, timed[name].between), fastest=timed[name].fastest)
        for name, sides in logs.items()
        if _enough(timed[name], sides)
    }
    steps = dict(zip(judged, holm([rounds.p for rounds in judged.values()], alpha), strict=True)) if judged else {}
    around = _drift([half for name in judged if timed[name].by_run for side in logs[name] for half in _halves(side)])
    speeds: dict[str, Speed] = {}
    for name, sides in logs.items():
        if name not in judged:
            baseline, candidate = timed[name].seconds
            ratio = candidate / baseline if baseline and candidate else None
            speeds[name] = Speed(kind="inconclusive", reason=_unjudged(timed[name]), ratio=ratio)
            continue
        welch, step = judged[name], steps[name]
        noise = around if timed[name].by_run else max(_astray(side, step.alpha) for side in sides)
        low, high = welch.interval(step.alpha)
        kind, reason = _kind(welch.least, noise, rejected=step.rejected)
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


def _enough(timed: TimedRounds, sides: tuple[list[float], list[float]]) -> bool:
    return min(map(len, sides)) >= (RUNS if timed.by_run else LEAST)


def _kind(mean: float, noise: float, *, rejected: bool) -> tuple[Kind, str]:
    if not rejected:
        return "inconclusive", ""
    if abs(mean) <= noise:
        return "inconclusive", "no larger than the A/A"
    return ("slower" if mean > 0 else "faster"), ""


def _unjudged(timed: TimedRounds) -> str:
    fewest = min(len(_joined(side)) for side in (timed.before, timed.after))
    if fewest == 0:
        return "no rounds were saved"
    return f"too few rounds: n = {fewest}" if fewest < LEAST else "rounds of 0 s: the clock is too coarse"


def _halves(logs: Sequence[float]) -> list[float]:
    """Return the difference between the means of the later and the earlier half of a side."""
    half = len(logs) // 2
    return [abs(statistics.fmean(logs[half:]) - statistics.fmean(logs[:half]))] if half else []


def _drift(halves: Sequence[float]) -> float:
    """Return the quantile of these differences below which nine in ten lie."""
    return sorted(halves)[math.ceil(SHARE * len(halves)) - 1] if halves else 0.0


def _astray(logs: Sequence[float], alpha: float) -> float:
    """Return the limit of the interval of the difference between both halves of a side."""
    half = len(logs) // 2
    return max(map(abs, _welch(logs[:half], logs[half:]).interval(alpha)))


def _welch(baseline: Sequence[float], candidate: Sequence[float], between: float = 0.0) -> _Welch:
    """Return Welch's comparison of two means that vary by `between` times the variance of single numbers besides."""
    parts = [statistics.variance(side) * (1 / len(side) + between) for side in (baseline, candidate)]
    below = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (baseline, candidate), strict=True))
    freedom = sum(parts) ** 2 / below if below else len(baseline) + len(candidate) - 2.0
    mean = statistics.fmean(candidate) - statistics.fmean(baseline)
    return _Welch(mean=mean, error=math.sqrt(sum(parts)), freedom=freedom, sides=(len(baseline), len(candidate)))


def _joined(runs: Sequence[Rounds]) -> list[float]:
    return [seconds for rounds in runs for seconds in rounds]


def _logarithms(seconds: Sequence[float]) -> list[float]:
    return [math.log(value) for value in seconds] if all(value > 0 for value in seconds) else []
