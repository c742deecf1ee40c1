"""Search for option values at which a training step takes as long as the baseline's, for all variants in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

from paribus.errors import Problem, SpecError
from paribus.planning.match_budget import CANNOT_MATCH, MAX_CHOICES, MAX_VALUE, MAX_WHOLE, MIN_VALUE
from paribus.planning.paired_ratio import TWIN, Ratio, paired_ratio, widen
from paribus.runner.timing import GROUP_SIZE

DIGITS: Final = 3
STRIDES: Final = (4.0, 2.0, 1.5, 1.2, 1.05)  # factors of one step; the first with a valid value is taken
MARGIN: Final = 0.1  # share of an interval that a value inside keeps from both ends
IsValid = Callable[[float], bool]  # whether a spec with this value is valid
TOLERANCE: Final = 0.01  # of the ratio; a few rounds cannot resolve less
MAX_PASSES: Final = 9
SEARCH_SECONDS: Final = 0.5  # for each variant, in a pass of the search
FINAL_SECONDS: Final = 2.0  # for each variant, in the last pass, which measures the result

Spec = Mapping[str, Any]
MeasurePass = Callable[[Mapping[str, Spec], Sequence[Sequence[str]], float], Mapping[str, Any]]
"""Takes specs by name, groups of names that start with the baseline, and seconds; returns the rounds of each."""


class MeasuredValue(NamedTuple):
    """Value of the option, and the ratio of its step time to the baseline's."""

    value: float
    ratio: Ratio


@final
@dataclass(frozen=True)
class TimeMatch:
    """Result of a search; its ratio is from a separate pass, which did not select the value."""

    value: float
    ratio: Ratio  # its interval includes the noise of the twin
    twin: Ratio
    nanoseconds: tuple[int, int]  # of a step of the baseline, and of the variant
    tried: tuple[MeasuredValue, ...]
    document: Mapping[str, Any]  # of that pass, with machine and time


@final
class Search:
    """Search for the value of one variant."""

    def __init__(self, values: SearchRange, start: float) -> None:
        self.values = values
        self.tried: list[MeasuredValue] = []
        self.next: float | None = start

    def add_result(self, ratio: Ratio) -> None:
        """Add the ratio of the value `next`, and select the following value; time grows with the value, noise aside."""
        assert self.next is not None
        self.tried.append(MeasuredValue(self.next, ratio))
        self.next = None if abs(ratio.median - 1) <= TOLERANCE or len(self.tried) == MAX_PASSES else self._following()

    def _following(self) -> float | None:
        below, above = self.below, self.above
        if below is None or above is None:
            nearest = below or above
            assert nearest is not None
            return self.values.step_from(nearest.value, up=above is None, limit=2.0 if len(self.tried) == 1 else 4.0)
        if below.value >= above.value:  # because of noise: no value is between them
            return None
        share = (1 - below.ratio.median) / (above.ratio.median - below.ratio.median)
        return self.values.between(below.value, above.value, below.value + share * (above.value - below.value))

    @property
    def below(self) -> MeasuredValue | None:
        """Return the largest value that is too fast."""
        return max((it for it in self.tried if it.ratio.median < 1), key=lambda it: it.value, default=None)

    @property
    def above(self) -> MeasuredValue | None:
        """Return the smallest value that is not too fast."""
        return min((it for it in self.tried if it.ratio.median >= 1), key=lambda it: it.value, default=None)

    @property
    def best(self) -> MeasuredValue:
        """Return the value whose step time is nearest to the baseline's."""
        return min(self.tried, key=lambda it: abs(it.ratio.median - 1))

    def problem(self, variant: str, by: str) -> Problem | None:
        """Return the error if all possible values are too fast, or all are too slow."""
        below, above, best = self.below, self.above, self.best
        if (below and above) or best.ratio.low <= 1 <= best.ratio.high or abs(best.ratio.median - 1) <= TOLERANCE:
            return None
        start, end = self.tried[0], self.tried[-1]
        even = f"even at {by}={end.value:g} a step of {variant} takes {_times(end.ratio)} as long as the baseline's"
        other_end = f"; at {start.value:g} it is {_times(start.ratio)}" if start is not end else ""
        return Problem(
            code=CANNOT_MATCH,
            path="match.by",
            message=even + other_end,
            valid="another option under `match.by`, or no match on time",
        )


def _times(ratio: Ratio) -> str:
    return f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] times"


@final
@dataclass(frozen=True)
class MatchTask:
    """Variant to match: its option, the current value, and the specs of the baseline and of the variant."""

    variant: str
    by: str
    start: float
    baseline: str  # key of its spec; variants with the same baseline take turns with it
    baseline_spec: Spec
    make_spec: Callable[[float], Spec]  # of the variant with a value; raises a `SpecError` for an invalid one


def search_matches(
    tasks: Mapping[str, MatchTask], measure: MeasurePass, note: Callable[[str], None] = lambda text: None
) -> tuple[dict[str, TimeMatch], list[Problem]]:
    """Return the matches, and the problems of variants that cannot be matched.

    Each pass measures one value of every unfinished variant. The next value is where the line through the two nearest
    values meets the baseline's time, because step time is nearly linear in the option.
    """
    searches = {name: Search(_search_range(task), task.start) for name, task in tasks.items()}
    number = 0
    while values := {name: search.next for name, search in searches.items() if search.next is not None}:
        number += 1
        results = _run_pass(tasks, values, measure, SEARCH_SECONDS)
        for name, (ratio, _, _, _) in results.items():
            searches[name].add_result(ratio)
        texts = (f"{tasks[name].variant} at {values[name]:g} takes {_times(results[name][0])}" for name in results)
        note(f"matching on time, pass {number}: {'; '.join(texts)}")
    problems = {name: search.problem(tasks[name].variant, tasks[name].by) for name, search in searches.items()}
    best = {name: search.best.value for name, search in searches.items() if problems[name] is None}
    final_results = _run_pass(tasks, best, measure, FINAL_SECONDS) if best else {}
    matches = {
        name: TimeMatch(best[name], ratio, twin, nanoseconds, tuple(searches[name].tried), document)
        for name, (ratio, twin, nanoseconds, document) in final_results.items()
    }
    return matches, [problem for problem in problems.values() if problem is not None]


def _search_range(task: MatchTask) -> SearchRange:
    def is_valid(value: float) -> bool:
        try:
            task.make_spec(value)
        except SpecError:
            return False
        return True

    return SearchRange(task.start, is_valid, whole=isinstance(task.start, int))


PassResult = tuple[Ratio, Ratio, tuple[int, int], Mapping[str, Any]]


def _run_pass(
    tasks: Mapping[str, MatchTask], values: Mapping[str, float], measure: MeasurePass, seconds: float
) -> dict[str, PassResult]:
    """Run one pass: return for each variant its ratio, the twin's ratio, the step times and the document."""
    specs: dict[str, Spec] = {}
    names_by_baseline: dict[str, list[str]] = {}
    for name, value in values.items():
        task = tasks[name]
        specs |= {task.baseline: task.baseline_spec, name: task.make_spec(value)}
        names_by_baseline.setdefault(task.baseline, []).append(name)
    groups = [
        [baseline, *names[start : start + GROUP_SIZE]]
        for baseline, names in names_by_baseline.items()
        for start in range(0, len(names), GROUP_SIZE)
    ]
    document = measure(specs, groups, seconds)
    results: dict[str, PassResult] = {}
    for group in document["groups"]:
        baseline_rounds, rounds = group["rounds"][group["baseline"]], group["rounds"]
        twin = paired_ratio(baseline_rounds, rounds[TWIN])
        for name in rounds:
            if name in values:
                ratio = widen(paired_ratio(baseline_rounds, rounds[name]), twin)
                results[name] = (ratio, twin, (_nanoseconds(baseline_rounds), _nanoseconds(rounds[name])), document)
    return results


def _nanoseconds(rounds: Sequence[float]) -> int:
    return round(1e9 * sorted(rounds)[len(rounds) // 2])


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
