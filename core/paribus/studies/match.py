"""Matched budgets: an elastic knob is turned until a variant costs what the baseline costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from paribus.errors import Problem, SpecError

LOWEST: Final = 1.0 / 64
HIGHEST: Final = 1024.0
STEPS: Final = 60

Count = Callable[[float], int]


class Matched(NamedTuple):
    """The knob's value, what it came to, and how far off that is."""

    value: float
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    target: int

    @property
    def residual(self) -> float:
        return self.count / self.target - 1.0


def solve(count: Count, target: int, *, whole: bool, start: float, path: str) -> Matched:
    """The value at which `count` is nearest to `target`; `count` must grow with it.

    A ratio that comes to a whole width has plateaus: of all values on the best one, that nearest to `start` is taken.
    """
    if count(start) == target:
        return Matched(start, target, target)
    low, high = (1.0, 2.0**24) if whole else (LOWEST, HIGHEST)
    if count(low) > target:
        raise SpecError(
            Problem(
                code="cannot-match",
                path=path,
                what=f"even at {low:g} this variant has {count(low):,} where the baseline has {target:,}",
                valid="another knob under `match.by`, or no match",
            )
        )
    for _ in range(STEPS):
        middle = math.floor((low + high) / 2) if whole else (low + high) / 2
        if middle in (low, high):
            break
        if count(middle) <= target:
            low = middle
        else:
            high = middle
    best = min((low, high), key=lambda value: abs(count(value) - target))
    return Matched(_tidied(count, best, whole), count(best), target)


def _tidied(count: Count, value: float, whole: bool) -> float:
    """The shortest decimal that counts the same, so that a spec stays readable."""
    if whole:
        return int(value)
    for digits in range(1, 12):
        short = round(value, digits)
        if count(short) == count(value):
            return short
    return value
