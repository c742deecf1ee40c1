"""The values that a knob can be turned to: any number, to three digits, or the whole ones that a model can have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

from paribus.studies.match import HIGHEST, LOWEST, MOST, MOST_TRIED

DIGITS: Final = 3
STRIDES: Final = (4.0, 2.0, 1.5, 1.2, 1.05)  # by which a knob is turned at once: the first that gives a possible value
NARROW: Final = 0.1  # of what lies between two values is left on either side of the next one

Possible = Callable[[float], bool]  # whether a spec with this value would be valid


@final
class Knob:
    """The option under `match.by`, from where a variant has it."""

    def __init__(self, start: float, possible: Possible, *, whole: bool) -> None:
        self.possible = possible
        self.whole = whole
        self.step = _step(int(start), possible) if whole else 0
        self.low = (int(start) - 1) % self.step + 1 if self.step else 1
        few = whole and (not self.step or any(possible(value) for value in range(1, self.low)))
        self.few: Sequence[int] = [value for value in range(1, MOST_TRIED) if possible(value)] if few else ()
        """Of heads that share keys there are as many as divide all of them: few, and not evenly."""

    def away(self, value: float, *, up: bool, most: float = STRIDES[0]) -> float | None:
        """The next value to try where none beyond is known; None at the end of what is possible."""
        if self.few:
            beyond = [each for each in self.few if (each > value if up else each < value)]
            return None if not beyond else beyond[0] if up else beyond[-1]
        for stride in (each for each in STRIDES if each <= most):
            found = self._rounded(value * stride if up else value / stride)
            if found != value and self._within(found) and self.possible(found):
                return found
        return None

    def between(self, low: float, high: float, aim: float) -> float | None:
        """The value nearest to `aim` that lies between two others; None where none does."""
        if self.few:
            inner = [each for each in self.few if low < each < high]
            return min(inner, key=lambda each: abs(each - aim), default=None)
        margin = NARROW * (high - low)
        found = self._rounded(min(max(aim, low + margin), high - margin))
        if self.whole:
            found = min(max(found, low + self.step), high - self.step)
        return found if low < found < high and self.possible(found) else None

    def _rounded(self, value: float) -> float:
        if not self.whole:
            return float(f"{value:.{DIGITS}g}")
        return self.low + max(0, round((value - self.low) / self.step)) * self.step

    def _within(self, value: float) -> bool:
        return value <= MOST if self.whole else self._rounded(LOWEST) <= value <= HIGHEST


def _step(start: int, possible: Possible) -> int:
    """How far apart the whole numbers are that a model can have; 0 where they do not lie evenly."""
    steps = range(1, start + 1)
    return next((step for step in steps if possible(start + step) and possible(start + 2 * step)), 0)
