"""Ratio of two step times from interleaved rounds: the median of ratios, with its confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

LEVEL: Final = 0.95
TWIN: Final = "twin"  # name of the baseline's second model in a pass
GENERATION: Final = "generation"  # what the inference of a pass is
FORWARD: Final = "forward pass"


class Ratio(NamedTuple):
    """Median over rounds, with its confidence interval at `LEVEL`."""

    median: float
    low: float
    high: float
    rounds: int


def paired_ratio(baseline: Sequence[float], variant: Sequence[float]) -> Ratio:
    """Return the ratio of the variant to the baseline, round by round."""
    ratios = sorted(time / reference for reference, time in zip(baseline, variant, strict=True))
    low, high = interval(ratios)
    return Ratio(median(ratios), low, high, len(ratios))


def widen(ratio: Ratio, twin: Ratio) -> Ratio:
    """Return a ratio whose interval is widened by the noise between two models of the baseline.

    Two models of one spec may differ in every round alike, by their place in memory.
    """
    noise = max(twin.high, 1 / twin.low, 1.0) if twin.low > 0 else math.inf
    return ratio._replace(low=ratio.low / noise, high=ratio.high * noise)


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the median of sorted values at `LEVEL`, for any distribution.

    The number of values below the true median is binomial with p = 1/2. Fewer than 6 values have no finite interval.
    """
    n = len(ratios)
    tail, k = 0.5**n, 0
    while 2 * (tail + math.comb(n, k + 1) * 0.5**n) <= 1 - LEVEL:
        k += 1
        tail += math.comb(n, k) * 0.5**n
    if 2 * tail > 1 - LEVEL:
        return -math.inf, math.inf
    return ratios[k], ratios[n - 1 - k]
