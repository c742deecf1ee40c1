"""Search for option values at which a training step takes as long as the baseline's, for all variants in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

from paribus.errors import Problem, SpecError
from paribus.planning.match_search import CANNOT_MATCH, SearchRange
from paribus.planning.paired_ratio import TWIN, Ratio, paired_ratio, widen
from paribus.runner.timing import GROUP_SIZE

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

    def __init__(self, knob: SearchRange, start: float) -> None:
        self.knob = knob
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
            last = below or above
            assert last is not None
            return self.knob.step_from(last.value, up=above is None, limit=2.0 if len(self.tried) == 1 else 4.0)
        if below.value >= above.value:  # because of noise: no value is between them
            return None
        share = (1 - below.ratio.median) / (above.ratio.median - below.ratio.median)
        return self.knob.between(below.value, above.value, below.value + share * (above.value - below.value))

    @property
    def below(self) -> MeasuredValue | None:
        """Return the largest value that is too fast."""
        return max((each for each in self.tried if each.ratio.median < 1), key=lambda each: each.value, default=None)

    @property
    def above(self) -> MeasuredValue | None:
        return min((each for each in self.tried if each.ratio.median >= 1), key=lambda each: each.value, default=None)

    @property
    def best(self) -> MeasuredValue:
        return min(self.tried, key=lambda each: abs(each.ratio.median - 1))

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
            valid="another knob under `match.by`, or no match on time",
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
    spec: Spec  # of the baseline
    turned: Callable[[float], Spec]  # of the variant with a value; raises a `SpecError` for an impossible one


def search_matches(
    tasks: Mapping[str, MatchTask], take: MeasurePass, note: Callable[[str], None] = lambda text: None
) -> tuple[dict[str, TimeMatch], list[Problem]]:
    """Return the matches, and the problems of variants that cannot be matched.

    Each pass measures one value of every unfinished variant. The next value is where the line through the two nearest
    values meets the baseline's time, because step time is nearly linear in the option.
    """
    searches = {name: Search(_knob(task), task.start) for name, task in tasks.items()}
    number = 0
    while values := {name: task.next for name, task in searches.items() if task.next is not None}:
        number += 1
        results = _run_pass(tasks, values, take, SEARCH_SECONDS)
        for name, (ratio, _, _, _) in results.items():
            searches[name].add_result(ratio)
        texts = (f"{tasks[name].variant} at {values[name]:g} takes {_times(results[name][0])}" for name in results)
        note(f"matching on time, pass {number}: {'; '.join(texts)}")
    problems = {name: task.problem(tasks[name].variant, tasks[name].by) for name, task in searches.items()}
    best = {name: task.best.value for name, task in searches.items() if problems[name] is None}
    final_results = _run_pass(tasks, best, take, FINAL_SECONDS) if best else {}
    matches = {
        name: TimeMatch(best[name], ratio, twin, nanoseconds, tuple(searches[name].tried), document)
        for name, (ratio, twin, nanoseconds, document) in final_results.items()
    }
    return matches, [problem for problem in problems.values() if problem is not None]


def _knob(asked: MatchTask) -> SearchRange:
    def possible(value: float) -> bool:
        try:
            asked.turned(value)
        except SpecError:
            return False
        return True

    return SearchRange(asked.start, possible, whole=isinstance(asked.start, int))


Found = tuple[Ratio, Ratio, tuple[int, int], Mapping[str, Any]]


def _run_pass(
    tasks: Mapping[str, MatchTask], values: Mapping[str, float], take: MeasurePass, seconds: float
) -> dict[str, Found]:
    """Run one pass: return for each variant its ratio, the twin's ratio, the step times and the document."""
    specs: dict[str, Spec] = {}
    names_by_baseline: dict[str, list[str]] = {}
    for name, value in values.items():
        task = tasks[name]
        specs |= {task.baseline: task.spec, name: task.turned(value)}
        names_by_baseline.setdefault(task.baseline, []).append(name)
    groups = [
        [baseline, *names[start : start + GROUP_SIZE]]
        for baseline, names in names_by_baseline.items()
        for start in range(0, len(names), GROUP_SIZE)
    ]
    document = take(specs, groups, seconds)
    results: dict[str, Found] = {}
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
