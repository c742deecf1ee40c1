"""Matched budgets: an elastic knob is turned until a variant costs what the baseline costs.

The values that a knob can be turned to: any number, to three digits, or the whole ones that a model can have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, final

from paribus.errors import Problem, SpecError

LOWEST: Final = 1.0 / 64
HIGHEST: Final = 1024.0
STEPS: Final = 60
MOST: Final = 2**24  # of a whole knob
MOST_TRIED: Final = 256  # values of a knob that has few
CANNOT: Final = "cannot-match"

Count = Callable[[float], int]


class TimeMeasurement(NamedTuple):
    """How a match on time is known: the ratio in rounds that took turns, and where that was."""

    ratio: float
    low: float  # with 95 % confidence, wider by what the baseline strays from itself
    high: float
    noise: float  # how far from 1 that may be: the A/A
    rounds: int
    machine: str
    when: str = ""  # UTC, a day
    changes: tuple[str, ...] = ()  # what is not as it was then


class BudgetMatch(NamedTuple):
    """The knob's value, what it came to, and how far off that is."""

    value: float
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    target: int
    timing: TimeMeasurement | None = None  # of what is timed, and not counted: then those two are in nanoseconds

    @property
    def residual(self) -> float:
        return self.count / self.target - 1.0 if self.timing is None else self.timing.ratio - 1.0

    @property
    def residual_text(self) -> str:
        """`+0.42%`, or `+0.4% [-0.3%, +1.1%], A/A ±0.8%` of what was measured."""
        if self.timing is None:
            return f"{self.residual:+.2%}"
        ends = f"[{self.timing.low - 1:+.1%}, {self.timing.high - 1:+.1%}]"
        return f"{self.residual:+.1%} {ends}, A/A ±{self.timing.noise:.1%}"


def solve(count: Count, target: int, *, whole: bool, start: float, path: str, on: str = "") -> BudgetMatch:
    """The value at which `count` is nearest to `target`; `count` must grow with it.

    A ratio that comes to a whole width has plateaus: of all values on the best one, that nearest to `start` is taken.
    `on` is what the study calls that which is counted.
    """
    start = int(start) if whole else start
    if target == 0:
        what = f"the baseline has no {on or 'such thing'} (0) that variants could be matched on"
        raise SpecError(Problem(code=CANNOT, path="match.on", message=what, valid="something that it has"))
    if count(start) == target:
        return BudgetMatch(start, target, target)
    try:  # of heads that share keys there are as many as divide all of them: few, and not evenly
        return _between(count, target, whole=whole, start=start, path=path, on=on)
    except SpecError as error:
        if not whole or error.problems[0].code == CANNOT:
            raise
        there = [value for value in range(1, MOST_TRIED) if _possible(count, value)]
    return min((BudgetMatch(each, count(each), target) for each in there), key=lambda found: abs(found.count - target))


def _between(count: Count, target: int, *, whole: bool, start: float, path: str, on: str) -> BudgetMatch:
    """The same for a knob that can be turned to any number, or to every so-manieth."""
    low: float
    high: float
    low, high, step = _lattice(count, target, int(start)) if whole else (LOWEST, HIGHEST, 0)
    _moves(count, low, high, path, on)
    if count(low) > target:
        raise SpecError(
            Problem(
                code=CANNOT,
                path=path,
                message=f"even at {low:g} this variant has {count(low):,} where the baseline has {target:,}",
                valid="another knob under `match.by`, or no match",
            )
        )
    for _ in range(STEPS):
        middle = low + (high - low) // step // 2 * step if whole else (low + high) / 2
        if middle in (low, high):
            break
        if count(middle) <= target:
            low = middle
        else:
            high = middle
    best = min((low, high), key=lambda value: abs(count(value) - target))
    return BudgetMatch(_tidied(count, best, whole), count(best), target)


def _moves(count: Count, low: float, high: float, path: str, on: str) -> None:
    """Refuses a knob that what is counted does not depend on, however far it is turned."""
    if count(low) == count(high):
        what = f"`{path}` does not move the {on or 'count'}: it is {count(low):,} at {low:g}, and at {high:g} as well"
        valid = "another knob under `match.by`, or another `match.on`"
        raise SpecError(Problem(code=CANNOT, path="match.by", message=what, valid=valid))


def _lattice(count: Count, target: int, start: int) -> tuple[int, int, int]:
    """The least and the greatest whole number to look between, and how far apart those are that a model can have.

    A width is a multiple of the heads, and with rotary positions an even one: what that comes to is tried.
    """
    step = next((step for step in range(1, start + 1) if _possible(count, start + step, start + 2 * step)), 1)
    low = (start - 1) % step + 1
    if any(_possible(count, value) for value in range(1, low)):
        raise SpecError(Problem(code="sparse", message="there are values between those that lie evenly"))
    high = start + step
    while count(high) <= target and high < MOST:
        high = low + 2 * (high - low)
    return low, high, step


def _possible(count: Count, *values: int) -> bool:
    try:
        for value in values:
            count(value)
    except SpecError:
        return False
    return True


def _tidied(count: Count, value: float, whole: bool) -> float:
    """The shortest decimal that counts the same, so that a spec stays readable."""
    if whole:
        return int(value)
    for digits in range(1, 12):
        short = round(value, digits)
        if count(short) == count(value):
            return short
    return value


DIGITS: Final = 3
STRIDES: Final = (4.0, 2.0, 1.5, 1.2, 1.05)  # by which a knob is turned at once: the first that gives a possible value
NARROW: Final = 0.1  # of what lies between two values is left on either side of the next one

Possible = Callable[[float], bool]  # whether a spec with this value would be valid


@final
class SearchRange:
    """The option under `match.by`, from where a variant has it."""

    def __init__(self, start: float, possible: Possible, *, whole: bool) -> None:
        self.possible = possible
        self.whole = whole
        self.step = _step(int(start), possible) if whole else 0
        self.low = (int(start) - 1) % self.step + 1 if self.step else 1
        few = whole and (not self.step or any(possible(value) for value in range(1, self.low)))
        self.choices: Sequence[int] = [value for value in range(1, MOST_TRIED) if possible(value)] if few else ()
        """Of heads that share keys there are as many as divide all of them: few, and not evenly."""

    def step_from(self, value: float, *, up: bool, most: float = STRIDES[0]) -> float | None:
        """The next value to try where none beyond is known; None at the end of what is possible."""
        if self.choices:
            beyond = [each for each in self.choices if (each > value if up else each < value)]
            return None if not beyond else beyond[0] if up else beyond[-1]
        for stride in (each for each in STRIDES if each <= most):
            found = self._rounded(value * stride if up else value / stride)
            if found != value and self._within(found) and self.possible(found):
                return found
        return None

    def between(self, low: float, high: float, aim: float) -> float | None:
        """The value nearest to `aim` that lies between two others; None where none does."""
        if self.choices:
            inner = [each for each in self.choices if low < each < high]
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
