"""How many times as long something takes, from rounds that were timed one after the other on a noisy machine.

Rounds that follow each other are alike: what slows one down slows the next. So they are cut into batches in time order,
and a batch counts once, by its median: Student's t (Welch 1947) on the logarithms of these (batch means: Law and
Kelton, "Simulation Modeling and Analysis"). Of three runs a side and more, a run counts once.

What drifts slower than a batch these intervals do not show, and one run says nothing of how another would differ. So a
run counts as no surer than its single batches are: its mean is taken to stray, from run to run, with the variance that
batches have, and with twice that where a side is one run alone. And what the code takes, the fastest round takes as
well, which others on the machine only delay: the interval reaches to what the fastest rounds say, and of the two the
one nearer to no difference is what is claimed. Both are estimates, and no bounds, chosen on reports of unchanged code.
Beside it stands the A/A of a benchmark: the earlier half of one side against its later half, which are the same code.
Nothing is claimed that is no wider.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal, final

from paribus.analysis.student_t import holm, t_cdf, t_quantile

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
    """How many times as long it takes. Without an interval nothing is claimed."""

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
    """The rounds of one benchmark before and after, run by run."""

    before: Sequence[Rounds]
    after: Sequence[Rounds]

    @property
    def logs(self) -> tuple[list[float], list[float]]:
        """What counts once of each side, as logarithms of seconds: runs where both have several, or else batches."""
        if self.by_run:
            before, after = ([statistics.median(run) for run in side] for side in (self.before, self.after))
            return _logarithms(before), _logarithms(after)
        return batch_logarithms(_joined(self.before)), batch_logarithms(_joined(self.after))

    @property
    def seconds(self) -> tuple[float | None, float | None]:
        """Those of a round on each side: the geometric mean of the medians that count."""
        before, after = (math.exp(statistics.fmean(side)) if side else None for side in self.logs)
        return before, after

    @property
    def fastest(self) -> float | None:
        """How far the fastest rounds are apart, as a logarithm; None where runs are what counts."""
        if self.by_run:
            return None
        before, after = (min(_joined(side)) for side in (self.before, self.after))
        return math.log(after / before)

    @property
    def between(self) -> float:
        """How far means stray from run to run, as a share of the variance of what counts once; runs have shown it."""
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
        """The difference as far as both measures see it: 0 where they do not agree which way it goes."""
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
    """The logarithms of the medians of consecutive batches; none of a clock that counted 0."""
    count = min(len(rounds), BATCHES)
    cuts = [at * len(rounds) // count for at in range(count + 1)] if count else []
    return _logarithms([statistics.median(rounds[start:end]) for start, end in pairwise(cuts)])


def judge_speeds(timed: Mapping[str, TimedRounds], *, alpha: float = 0.05) -> dict[str, Speed]:
    """One answer for each benchmark, all of them together right 95 % of the time by Holm's procedure."""
    logs = {name: each.logs for name, each in timed.items()}
    held = {
        name: replace(_welch(*sides, timed[name].between), fastest=timed[name].fastest)
        for name, sides in logs.items()
        if _enough(timed[name], sides)
    }
    steps = dict(zip(held, holm([each.p for each in held.values()], alpha), strict=True)) if held else {}
    around = _drift([half for name in held if timed[name].by_run for side in logs[name] for half in _halves(side)])
    found: dict[str, Speed] = {}
    for name, sides in logs.items():
        if name not in held:
            before, after = timed[name].seconds
            ratio = after / before if before and after else None
            found[name] = Speed(kind="inconclusive", reason=_unjudged(timed[name]), ratio=ratio)
            continue
        welch, step = held[name], steps[name]
        noise = around if timed[name].by_run else max(_astray(side, step.alpha) for side in sides)
        low, high = welch.interval(step.alpha)
        kind, why = _kind(welch.least, noise, rejected=step.rejected)
        found[name] = Speed(
            kind=kind,
            reason=why,
            ratio=math.exp(welch.mean),
            low=math.exp(low),
            high=math.exp(high),
            level=1 - step.alpha,
            p=step.adjusted,
            noise=math.exp(noise),
        )
    return found


def _enough(timed: TimedRounds, sides: tuple[list[float], list[float]]) -> bool:
    return min(map(len, sides)) >= (RUNS if timed.by_run else LEAST)


def _kind(mean: float, noise: float, *, rejected: bool) -> tuple[Kind, str]:
    if not rejected:
        return "inconclusive", ""
    if abs(mean) <= noise:
        return "inconclusive", "the A/A is as wide"
    return ("slower" if mean > 0 else "faster"), ""


def _unjudged(timed: TimedRounds) -> str:
    fewest = min(len(_joined(side)) for side in (timed.before, timed.after))
    if fewest == 0:
        return "no rounds were saved"
    return f"too few rounds: n = {fewest}" if fewest < LEAST else "rounds of 0 s: the clock is too coarse"


def _halves(logs: Sequence[float]) -> list[float]:
    """How far the later half of a side is from the earlier one."""
    half = len(logs) // 2
    return [abs(statistics.fmean(logs[half:]) - statistics.fmean(logs[:half]))] if half else []


def _drift(halves: Sequence[float]) -> float:
    """What nine in ten of them keep to."""
    return sorted(halves)[math.ceil(SHARE * len(halves)) - 1] if halves else 0.0


def _astray(logs: Sequence[float], alpha: float) -> float:
    """How far the later half of a side may be from the earlier one; of runs their spread tells that already."""
    half = len(logs) // 2
    return max(map(abs, _welch(logs[:half], logs[half:]).interval(alpha)))


def _welch(before: Sequence[float], after: Sequence[float], between: float = 0.0) -> _Welch:
    """Of means that stray by `between` times the variance of single numbers, besides what the mean is known to."""
    parts = [statistics.variance(side) * (1 / len(side) + between) for side in (before, after)]
    below = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (before, after), strict=True))
    freedom = sum(parts) ** 2 / below if below else len(before) + len(after) - 2.0
    mean = statistics.fmean(after) - statistics.fmean(before)
    return _Welch(mean=mean, error=math.sqrt(sum(parts)), freedom=freedom, sides=(len(before), len(after)))


def _joined(runs: Sequence[Rounds]) -> list[float]:
    return [seconds for rounds in runs for seconds in rounds]


def _logarithms(seconds: Sequence[float]) -> list[float]:
    return [math.log(each) for each in seconds] if all(each > 0 for each in seconds) else []
