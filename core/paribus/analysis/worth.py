"""What a variant is worth in compute: the budget at which the baseline reaches its mean metric.

The baseline is trained at several budgets, each with a schedule of its own. Between two of them, its metric is
interpolated by a parabola in the logarithm of the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, final

from paribus.analysis.formatting import TIMES
from paribus.analysis.p_values import t_quantile
from paribus.analysis.verdicts import Better

MIN_SEEDS: Final = 2
SAMPLES: Final = 32  # places between two budgets that are looked at
BISECTIONS: Final = 40

Differences = Sequence[float]  # of a variant and the baseline at one budget, by seed


@final
@dataclass(frozen=True, kw_only=True)
class Multiplier:
    """Budget at which the baseline reaches the variant's mean metric, as a multiple of the variant's.

    `value` is None beyond the smallest and the largest budget, and so are the ends of the interval.
    """

    value: float | None
    low: float | None
    high: float | None
    is_above: bool  # without a value: above the largest budget, else below the smallest
    smallest: float
    largest: float
    n: int

    def scaled(self, factor: float, spread: tuple[float, float] | None = None) -> Multiplier:
        """Return the multiplier in a unit of which the variant takes 1 / `factor` as much as the baseline.

        `spread` is the interval of the factor. Its distances and those of this interval are added as squares of
        logarithms, as of independent errors.
        """

        def end(number: float | None, end_of_factor: float, sign: int) -> float | None:
            if number is None or self.value is None or spread is None:
                return None if number is None else number * factor
            distance = math.hypot(math.log(number / self.value), math.log(end_of_factor / factor))
            return self.value * factor * math.exp(sign * distance)

        low, high = spread or (factor, factor)
        return replace(
            self,
            value=None if self.value is None else self.value * factor,
            low=end(self.low, low, -1),
            high=end(self.high, high, 1),
            smallest=self.smallest * factor,
            largest=self.largest * factor,
        )

    @property
    def text(self) -> str:
        """The multiplier with its interval, and where it is beyond the budgets, their limit."""
        if self.value is not None:
            low = f"< {_times(self.smallest)}" if self.low is None else _times(self.low)
            high = f"> {_times(self.largest)}" if self.high is None else _times(self.high)
            return f"{_times(self.value)} [{low}, {high}]"
        word, limit, end = ("from", self.largest, self.low) if self.is_above else ("to", self.smallest, self.high)
        interval = "" if end is None or _times(end) == _times(limit) else f" [{word} {_times(end)}]"
        return f"{'>' if self.is_above else '<'} {_times(limit)}{interval}"

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def _times(number: float) -> str:
    return f"{number:#.3g}".removesuffix(".") + TIMES


def multiplier(
    budgets: Mapping[float, Mapping[int, float]], variant: Mapping[int, float], *, better: Better, alpha: float
) -> Multiplier | None:
    """Return what a variant is worth, from the metric of the baseline by budget and seed, and of the variant by seed.

    A multiplier is in the interval if Student's t-test over seeds does not reject that the baseline has the variant's
    mean metric at this budget. The difference of a seed at a budget between two measured ones is a weighted sum of
    those at up to four, so the test is exact for normal differences, apart from the error of the interpolation. At the
    budget of the variant, it is the test of its verdict.

    None with fewer than two seeds or budgets, if the largest budget does not improve the baseline, and if the baseline
    has this metric at several budgets.
    """
    seeds = [seed for seed in variant if all(seed in values for values in budgets.values())]
    factors = sorted(budgets)
    if len(seeds) < MIN_SEEDS or len(factors) < 2:
        return None
    sign = 1.0 if better == "lower" else -1.0
    # How much worse the variant is than the baseline: this rises with the baseline's budget.
    worse = [[sign * (variant[seed] - budgets[factor][seed]) for seed in seeds] for factor in factors]
    first, last = _mean(worse[0]), _mean(worse[-1])
    if last <= first:
        return None
    bound = t_quantile(1 - alpha / 2, len(seeds) - 1)
    logs = [math.log(factor) for factor in factors]
    parts = [_Part(index, worse, logs, bound) for index in range(len(factors) - 1)]
    crossings = [0.0] * (first == 0) + [place for part in parts for place in part.crossings()]
    if len(crossings) > 1 and not first <= 0 <= last:
        return None
    accepted = [*crossings, *(place for part in parts for place in part.accepted())]
    value = _budget_at(crossings[len(crossings) // 2], factors) if first <= 0 <= last else None
    low = _budget_at(min(accepted), factors) if accepted else factors[-1] if last < 0 else factors[0]
    high = _budget_at(max(accepted), factors) if accepted else low
    return Multiplier(
        value=value,
        low=None if _t(worse[0]) >= -bound else low,
        high=None if _t(worse[-1]) <= bound else high,
        is_above=last < 0,
        smallest=factors[0],
        largest=factors[-1],
        n=len(seeds),
    )


def _mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def _covariance(first: Sequence[float], second: Sequence[float]) -> float:
    means = _mean(first), _mean(second)
    return math.fsum((x - means[0]) * (y - means[1]) for x, y in zip(first, second, strict=True)) / (len(first) - 1)


def _budget_at(place: float, factors: Sequence[float]) -> float:
    """Return the budget at a place: 1.5 is in the middle between the second and the third, of logarithms."""
    index = min(int(place), len(factors) - 2)
    return float(factors[index] * (factors[index + 1] / factors[index]) ** (place - index))


def _t(differences: Differences) -> float:
    """Return Student's t; infinite for equal differences other than 0."""
    mean, variance = _mean(differences), _covariance(differences, differences)
    if variance:
        return mean / math.sqrt(variance / len(differences))
    return math.copysign(math.inf, mean) if mean else 0.0


@final
class _Part:
    """The differences between two neighbouring budgets: a parabola in the share w of the way, for each seed.

    It goes through both, and has the mean curvature of the parabolas through one more budget on either side.
    """

    def __init__(self, index: int, worse: Sequence[Differences], logs: Sequence[float], bound: float) -> None:
        self.index, self.bound = index, bound
        self.ends = worse[index], worse[index + 1]
        curvature = [_curvature(values, logs, index) for values in zip(*worse, strict=True)]
        slope = [end - start - bend for start, end, bend in zip(*self.ends, curvature, strict=True)]
        terms = self.ends[0], slope, curvature  # difference = constant + slope w + curvature w²
        self.means = [_mean(term) for term in terms]
        self.covariances = [[_covariance(term, other) for other in terms] for term in terms]

    def mean(self, share: float) -> float:
        """Return the mean difference, at the second budget without rounding."""
        if share == 1:
            return _mean(self.ends[1])
        return self.means[0] + share * (self.means[1] + share * self.means[2])

    def excess(self, share: float) -> float:
        """Return mean² - bound² variance / n, which is positive where the t-test rejects."""
        powers = (1.0, share, share * share)
        variance = sum(powers[i] * powers[j] * self.covariances[i][j] for i in range(3) for j in range(3))
        return self.mean(share) ** 2 - self.bound**2 * variance / len(self.ends[0])

    def accepted(self) -> Iterator[float]:
        """Yield both budgets if t is within its bound there, and where it enters and leaves its bound between them."""
        yield from (self.index + end for end in (0, 1) if abs(_t(self.ends[end])) <= self.bound)
        # A short interval around a crossing may lie between two places that are looked at.
        yield from (self.index + share for share in _sign_changes(self.excess, list(_sign_changes(self.mean))))

    def crossings(self) -> Iterator[float]:
        """Yield where the mean difference is 0, without the start."""
        yield from (self.index + share for share in _sign_changes(self.mean))


def _curvature(values: Sequence[float], logs: Sequence[float], index: int) -> float:
    """Return the curvature between a budget and the next one, on the scale of their distance."""

    def divided(start: int) -> float:
        (x, y, z), (a, b, c) = logs[start : start + 3], values[start : start + 3]
        return ((c - b) / (z - y) - (b - a) / (y - x)) / (z - x)

    curvatures = [divided(start) for start in (index - 1, index) if 0 <= start <= len(logs) - 3]
    distance = logs[index + 1] - logs[index]
    return _mean(curvatures) * distance**2 if curvatures else 0.0


def _sign_changes(function: Callable[[float], float], more: Sequence[float] = ()) -> Iterator[float]:
    """Yield where a function changes its sign between 0 and 1, at the end included, given `more` places to look at."""
    places = sorted({*(place / SAMPLES for place in range(SAMPLES + 1)), *more})
    for (left, start), (right, end) in pairwise((place, function(place)) for place in places):
        if not start or not (end == 0 or (start < 0) != (end < 0)):
            continue
        low, high = left, right
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if function(middle) * start > 0 else (low, middle)
        yield high


@final
@dataclass(frozen=True, kw_only=True)
class Trend:
    """Factor by which a multiplier changes with each doubling of the parameters."""

    factor: float
    low: float
    high: float

    @property
    def text(self) -> str:
        return f"{_times(self.factor)} [{_times(self.low)}, {_times(self.high)}] with each doubling of the parameters"


def trend(sizes: Sequence[float], multipliers: Sequence[Multiplier]) -> Trend | None:
    """Return how multipliers change over sizes, by the line through their logarithms; None if one has no interval."""
    if len(set(sizes)) < 2 or any(None in (it.value, it.low, it.high) for it in multipliers):
        return None
    xs = [math.log2(size) for size in sizes]
    deviations = [x - _mean(xs) for x in xs]
    weights = [deviation / math.fsum(d * d for d in deviations) for deviation in deviations]
    logs = [[math.log(number) for number in (it.low or 1, it.value or 1, it.high or 1)] for it in multipliers]
    slope = math.fsum(weight * value for weight, (_, value, _) in zip(weights, logs, strict=True))
    half = math.sqrt(
        math.fsum((weight * (high - low) / 2) ** 2 for weight, (low, _, high) in zip(weights, logs, strict=True))
    )
    return Trend(factor=math.exp(slope), low=math.exp(slope - half), high=math.exp(slope + half))
