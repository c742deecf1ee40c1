"""How many times as long something takes, from rounds that took turns: a median of ratios, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

LEVEL: Final = 0.95
TWIN: Final = "twin"  # what a pass calls the baseline's second model


class Ratio(NamedTuple):
    """The median over rounds, with the interval that holds the true one at `LEVEL`."""

    median: float
    low: float
    high: float
    rounds: int


def paired_ratio(before: Sequence[float], after: Sequence[float]) -> Ratio:
    """Of the latter to the former, round by round."""
    found = sorted(other / one for one, other in zip(before, after, strict=True))
    low, high = interval(found)
    return Ratio(median(found), low, high, len(found))


def widen(found: Ratio, twin: Ratio) -> Ratio:
    """The interval, wider by what the baseline strays from itself.

    Two models of one spec may differ by where they lie in memory, in every round alike.
    """
    stray = max(twin.high, 1 / twin.low, 1.0) if twin.low > 0 else math.inf
    return found._replace(low=found.low / stray, high=found.high * stray)


def interval(found: Sequence[float]) -> tuple[float, float]:
    """The interval of the median at `LEVEL`, whatever the distribution: between two of the sorted values.

    The true median has as many of them below it as heads come up in so many throws. Fewer than 6 have no such interval.
    """
    n = len(found)
    tail, k = 0.5**n, 0
    while 2 * (tail + math.comb(n, k + 1) * 0.5**n) <= 1 - LEVEL:
        k += 1
        tail += math.comb(n, k) * 0.5**n
    if 2 * tail > 1 - LEVEL:
        return -math.inf, math.inf
    return found[k], found[n - 1 - k]
