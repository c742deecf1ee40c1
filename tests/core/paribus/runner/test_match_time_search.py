"""An option is searched until steps take as long as the baseline's, from interleaved rounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.errors import Problem, SpecError
from paribus.planning.paired_ratio import TWIN
from paribus.runner.match_time_search import (
    FINAL_SECONDS,
    MAX_PASSES,
    SEARCH_SECONDS,
    TOLERANCE,
    MatchTask,
    TimeMatch,
    search_matches,
)
from paribus.runner.timing import GROUP_SIZE

Spec = Mapping[str, Any]


class Clock:
    """Takes passes of specs that say how long they take; the machine is now faster, now slower, for all alike."""

    def __init__(self, noise: float = 0.0, rounds: int = 12) -> None:
        self.noise, self.rounds = noise, rounds
        self.luck = random.Random(0)
        self.passes: list[tuple[dict[str, float], float]] = []
        self.groups: list[list[list[str]]] = []

    def __call__(self, specs: Mapping[str, Spec], groups: Sequence[Sequence[str]], seconds: float) -> dict[str, Any]:
        self.passes.append(({name: spec["value"] for name, spec in specs.items()}, seconds))
        self.groups.append([list(group) for group in groups])
        return {"groups": [self._group(specs, list(group)) for group in groups]}

    def _group(self, specs: Mapping[str, Spec], group: list[str]) -> dict[str, Any]:
        drift = [1 + 0.3 * (number % 4) for number in range(self.rounds)]
        rounds = {
            name: [seconds * specs[group[0] if name == TWIN else name]["takes"] * self._luck() for seconds in drift]
            for name in (*group, TWIN)
        }
        return {"baseline": group[0], "rounds": rounds}

    def _luck(self) -> float:
        return self.luck.lognormvariate(0, self.noise)


def asked(
    takes: Callable[[float], float], start: float, *, refuses: Any = lambda value: False, name: str = "v"
) -> MatchTask:
    def make_spec(value: float) -> Spec:
        if refuses(value):
            raise SpecError(Problem(code="out-of-range", message=f"{value} is none"))
        return {"value": value, "takes": takes(value)}

    spec = {"value": 0.0, "takes": 1.0}
    return MatchTask(
        variant=name, by="feedforward.expand", start=start, baseline="base", baseline_spec=spec, make_spec=make_spec
    )


def one(takes: Callable[[float], float], start: float, clock: Clock, **options: Any) -> TimeMatch:
    match_result, problems = search_matches({"key": asked(takes, start, **options)}, clock)
    assert not problems
    return match_result["key"]


@given(st.floats(0.3, 0.9), st.floats(0.2, 3.0), st.floats(1.0, 8.0))
def test_a_linear_step_time_is_matched_within_a_hundredth(fixed: float, much: float, start: float) -> None:
    clock = Clock()
    match_result = one(lambda value: fixed + much * (1 - fixed) * value / start, start, clock)
    assert abs(match_result.ratio.median - 1) <= TOLERANCE
    assert len(clock.passes) <= MAX_PASSES + 1
    assert float(f"{match_result.value:.3g}") == match_result.value or match_result.value == start


def test_a_variant_that_matches_already_keeps_its_value() -> None:
    clock = Clock()
    assert one(lambda value: 1.005, 4.0, clock).value == 4.0
    assert [seconds for _, seconds in clock.passes] == [SEARCH_SECONDS, FINAL_SECONDS]


def test_the_residual_is_from_a_separate_pass() -> None:
    clock = Clock(noise=0.05)
    match_result = one(lambda value: 0.5 + value / 8, 3.0, clock)
    *looked, (values, seconds) = clock.passes
    assert seconds == FINAL_SECONDS > SEARCH_SECONDS
    assert values["key"] == match_result.value
    assert [trial_value.value for trial_value in match_result.tried] == [values["key"] for values, _ in looked]
    assert match_result.ratio not in [trial_value.ratio for trial_value in match_result.tried]
    assert match_result.ratio.low < match_result.ratio.median < match_result.ratio.high
    assert match_result.twin.low < 1 < match_result.twin.high


@given(st.sampled_from([2, 4, 8]), st.integers(2, 60), st.integers(3, 400))
def test_the_nearest_valid_whole_value_is_chosen(step: int, place: int, expected: int) -> None:
    """Multiples of the heads: the one on either side of the baseline's time that is nearer to it."""
    start, aim = step * place, max(step, expected)
    match_result = one(lambda value: value / aim, start, Clock(), refuses=lambda value: value % step)
    assert isinstance(match_result.value, int)
    assert match_result.value % step == 0
    nearest = min(abs(step * multiple - aim) for multiple in range(1, 500))
    assert abs(match_result.value - aim) <= max(nearest, TOLERANCE * aim) + 1e-9


@pytest.mark.parametrize(("aim", "nearest"), [(2.2, 2), (5.0, 6), (11.0, 12)])
def test_the_nearest_of_few_values_is_chosen(aim: float, nearest: int) -> None:
    """Heads that share keys divide all heads."""
    match_result = one(lambda value: 0.6 + 0.4 * value / aim, 6, Clock(), refuses=lambda value: 12 % value)
    assert match_result.value == nearest


def test_an_option_that_cannot_reach_the_baseline_is_refused_with_its_ratios() -> None:
    slow = {"key": asked(lambda value: 1.2 + value / 100, 4.0)}
    match_result, (problem,) = search_matches(slow, Clock())
    assert not match_result
    assert str(problem).startswith(
        "error[cannot-match] match.by: even at feedforward.expand=0.0156 a step of v takes 1.200 [1.200, 1.200] "
        "times as long as the baseline's; at 4 it is 1.240"
    )
    _, (problem,) = search_matches({"key": asked(lambda value: 0.7, 4.0)}, Clock())  # it does not move
    assert "takes 0.700 [0.700, 0.700] times as long" in problem.message
    _, (problem,) = search_matches(
        {"key": asked(lambda value: 0.5 + value / 100, 8, refuses=lambda value: value > 16)}, Clock()
    )
    assert "even at feedforward.expand=16 a step of v takes 0.660" in problem.message


def test_a_variant_that_cannot_be_matched_does_not_affect_others() -> None:
    both = {"a": asked(lambda value: 1.5, 4.0, name="a"), "b": asked(lambda value: value / 3, 4.0, name="b")}
    match_result, problems = search_matches(both, Clock())
    assert list(match_result) == ["b"]
    assert match_result["b"].value == pytest.approx(3.0, rel=TOLERANCE)
    assert len(problems) == 1


def test_variants_take_turns_with_their_baseline() -> None:
    clock = Clock()
    every = {f"{number}": asked(lambda value, at=number: value / (2 + at), 4.0) for number in range(GROUP_SIZE + 3)}  # type: ignore[misc]  # a default binds it
    match_result, _ = search_matches(every, clock)
    assert {name: round(solution.value, 1) for name, solution in match_result.items()} == pytest.approx(
        {f"{number}": 2 + number for number in range(GROUP_SIZE + 3)}, rel=0.05
    )
    first_group = clock.groups[0]
    assert [len(group) for group in first_group] == [1 + GROUP_SIZE, 1 + 3]
    assert {group[0] for group in first_group} == {"base"}
    assert len(clock.groups[1][0]) + len(clock.groups[1][-1]) < len(every) + 2 + 1  # what was near has left


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.4])
def test_noise_widens_the_interval_and_the_number_of_passes_is_limited(noise: float) -> None:
    clock = Clock(noise=noise, rounds=40)
    match_result = one(lambda value: 0.4 + 0.2 * value, 5.0, clock)  # 3 is right
    assert len(clock.passes) <= MAX_PASSES + 1
    true = 0.4 + 0.2 * match_result.value
    assert match_result.ratio.low <= true <= match_result.ratio.high
    assert abs(true - 1) < 0.02 + noise
