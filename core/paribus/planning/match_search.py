"""Search for the value of an option at which a variant costs what the baseline costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, final

from paribus.errors import Problem, SpecError

MIN_VALUE: Final = 1.0 / 64
MAX_VALUE: Final = 1024.0
MAX_STEPS: Final = 60  # of the bisection
MAX_WHOLE: Final = 2**24  # of an option with whole numbers
MAX_CHOICES: Final = 256  # of an option with few valid values
CANNOT_MATCH: Final = "cannot-match"

Count = Callable[[float], int]


class TimeMeasurement(NamedTuple):
    """Measurement of a match on time: the ratio over interleaved rounds, and the machine."""

    ratio: float
    low: float  # of the 95 % interval, widened by the noise
    high: float
    noise: float  # deviation from 1 that two models of the baseline show (A/A)
    rounds: int
    machine: str
    when: str = ""  # UTC date
    changes: tuple[str, ...] = ()  # of machine and code since then


class BudgetMatch(NamedTuple):
    """The value of the matched option, with the cost of the variant and of the baseline."""

    value: float
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    target: int
    timing: TimeMeasurement | None = None  # of a match on time; then count and target are nanoseconds

    @property
    def residual(self) -> float:
        """Relative difference to the baseline."""
        return self.count / self.target - 1.0 if self.timing is None else self.timing.ratio - 1.0

    @property
    def residual_text(self) -> str:
        """Residual as text: `+0.42%`, or `+0.4% [-0.3%, +1.1%], A/A ±0.8%` for a measurement."""
        if self.timing is None:
            return f"{self.residual:+.2%}"
        ends = f"[{self.timing.low - 1:+.1%}, {self.timing.high - 1:+.1%}]"
        return f"{self.residual:+.1%} {ends}, A/A ±{self.timing.noise:.1%}"


def solve(count: Count, target: int, *, whole: bool, start: float, path: str, on: str = "") -> BudgetMatch:
    """Return the value at which `count`, which must grow with it, is nearest to `target`.

    Args:
        whole: whether the option takes whole numbers
        start: the current value, which is kept where it matches already
        path: the option, for messages
        on: the name of the counted cost, for messages
    """
    start = int(start) if whole else start
    if target == 0:
        message = f"the baseline has no {on or 'such cost'} (0), so variants cannot match it"
        raise SpecError(Problem(code=CANNOT_MATCH, path="match.on", message=message, valid="a cost above 0"))
    if count(start) == target:
        return BudgetMatch(start, target, target)
    try:
        return _bisect(count, target, whole=whole, start=start, path=path, on=on)
    except SpecError as error:
        if not whole or error.problems[0].code == CANNOT_MATCH:
            raise
        # key-value heads must divide the heads: few values, and not evenly spaced
        choices = [value for value in range(1, MAX_CHOICES) if _is_valid(count, value)]
    return min((BudgetMatch(it, count(it), target) for it in choices), key=lambda match: abs(match.count - target))


def _bisect(count: Count, target: int, *, whole: bool, start: float, path: str, on: str) -> BudgetMatch:
    """Return the match of an option with any number, or with evenly spaced whole numbers."""
    low: float
    high: float
    low, high, step = _lattice(count, target, int(start)) if whole else (MIN_VALUE, MAX_VALUE, 0)
    _check_effect(count, low, high, path, on)
    if count(low) > target:
        raise SpecError(
            Problem(
                code=CANNOT_MATCH,
                path=path,
                message=f"even at {low:g} this variant has {count(low):,}, and the baseline has {target:,}",
                valid="another option under `match.by`, or no match",
            )
        )
    for _ in range(MAX_STEPS):
        middle = low + (high - low) // step // 2 * step if whole else (low + high) / 2
        if middle in (low, high):
            break
        if count(middle) <= target:
            low = middle
        else:
            high = middle
    best = min((low, high), key=lambda value: abs(count(value) - target))
    return BudgetMatch(_shortest(count, best, whole), count(best), target)


def _check_effect(count: Count, low: float, high: float, path: str, on: str) -> None:
    """Raise an error for an option that does not change the count."""
    if count(low) == count(high):
        message = f"`{path}` does not change the {on or 'count'}: it is {count(low):,} at {low:g} and at {high:g}"
        valid = "another option under `match.by`, or another `match.on`"
        raise SpecError(Problem(code=CANNOT_MATCH, path="match.by", message=message, valid=valid))


def _lattice(count: Count, target: int, start: int) -> tuple[int, int, int]:
    """Return the limits of the search among whole numbers, and the spacing of the valid ones.

    A width is a multiple of the heads, and even with rotary positions: the spacing is found by trying.
    """
    step = next((step for step in range(1, start + 1) if _is_valid(count, start + step, start + 2 * step)), 1)
    low = (start - 1) % step + 1
    if any(_is_valid(count, value) for value in range(1, low)):
        raise SpecError(Problem(code="uneven-values", message="the valid values are not evenly spaced"))
    high = start + step
    while count(high) <= target and high < MAX_WHOLE:
        high = low + 2 * (high - low)
    return low, high, step


def _is_valid(count: Count, *values: int) -> bool:
    try:
        for value in values:
            count(value)
    except SpecError:
        return False
    return True


def _shortest(count: Count, value: float, whole: bool) -> float:
    """Return the shortest decimal with the same count, so that a spec stays readable."""
    if whole:
        return int(value)
    for digits in range(1, 12):
        short = round(value, digits)
        if count(short) == count(value):
            return short
    return value


DIGITS: Final = 3
STRIDES: Final = (4.0, 2.0, 1.5, 1.2, 1.05)  # factors of one step; the first with a valid value is taken
MARGIN: Final = 0.1  # share of an interval that a value inside keeps from both ends

IsValid = Callable[[float], bool]  # whether a spec with this value is valid


@final
class SearchRange:
    """Valid values of the option under `match.by`, around the variant's own value."""

    def __init__(self, start: float, is_valid: IsValid, *, whole: bool) -> None:
        self.is_valid = is_valid
        self.whole = whole
        self.step = _spacing(int(start), is_valid) if whole else 0
        self.low = (int(start) - 1) % self.step + 1 if self.step else 1
        is_uneven = whole and (not self.step or any(is_valid(value) for value in range(1, self.low)))
        self.choices: Sequence[int] = [value for value in range(1, MAX_CHOICES) if is_valid(value)] if is_uneven else ()
        """All valid values where they are not evenly spaced: key-value heads must divide the heads."""

    def step_from(self, value: float, *, up: bool, limit: float = STRIDES[0]) -> float | None:
        """Return a value beyond this one, by a factor of at most `limit`; None at the end of the range."""
        if self.choices:
            beyond = [it for it in self.choices if (it > value if up else it < value)]
            return None if not beyond else beyond[0] if up else beyond[-1]
        for stride in (it for it in STRIDES if it <= limit):
            step = self._rounded(value * stride if up else value / stride)
            if step != value and self._is_in_range(step) and self.is_valid(step):
                return step
        return None

    def between(self, low: float, high: float, aim: float) -> float | None:
        """Return the valid value between two others that is nearest to `aim`, or None."""
        if self.choices:
            inner = [value for value in self.choices if low < value < high]
            return min(inner, key=lambda value: abs(value - aim), default=None)
        margin = MARGIN * (high - low)
        value = self._rounded(min(max(aim, low + margin), high - margin))
        if self.whole:
            value = min(max(value, low + self.step), high - self.step)
        return value if low < value < high and self.is_valid(value) else None

    def _rounded(self, value: float) -> float:
        if not self.whole:
            return float(f"{value:.{DIGITS}g}")
        return self.low + max(0, round((value - self.low) / self.step)) * self.step

    def _is_in_range(self, value: float) -> bool:
        return value <= MAX_WHOLE if self.whole else self._rounded(MIN_VALUE) <= value <= MAX_VALUE


def _spacing(start: int, is_valid: IsValid) -> int:
    """Return the spacing of valid whole numbers; 0 where they are not evenly spaced."""
    steps = range(1, start + 1)
    return next((step for step in steps if is_valid(start + step) and is_valid(start + 2 * step)), 0)
