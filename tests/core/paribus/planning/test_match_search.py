"""A matched knob comes as near to its target as any value can, and stays readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus.errors import Problem, SpecError
from paribus.planning.match_budget import solve


@given(st.integers(16, 512), st.floats(0.5, 8.0), st.integers(0, 5_000))
def test_no_other_value_is_nearer_to_the_target(width: int, expected: float, fixed: int) -> None:
    def count(expand: float) -> int:
        return fixed + 2 * width * max(1, round(expand * width))

    target = count(expected) + width // 2  # off the plateaus, so that there is a residual
    result = solve(count, target, whole=False, start=4.0, path="feedforward.expand")
    inner = round(result.value * width)
    near = [fixed + 2 * width * max(1, inner + step) for step in (-1, 0, 1)]
    assert abs(result.count - target) == min(abs(item - target) for item in near)
    assert result.count == count(result.value)
    assert result.residual == pytest.approx(result.count / target - 1)


@given(st.integers(1, 5_000), st.integers(1, 40))
def test_a_whole_number_stays_whole(target: int, slope: int) -> None:
    result = solve(
        lambda value: round(slope * value), max(target, slope), whole=True, start=7.0, path="feedforward.inner"
    )
    assert isinstance(result.value, int) or float(result.value).is_integer()
    assert abs(result.count - max(target, slope)) <= slope / 2


def test_a_value_that_matches_already_is_kept() -> None:
    result = solve(lambda value: 100, 100, whole=False, start=4.0, path="feedforward.expand")
    assert result.value == 4.0
    assert result.residual == 0.0


def test_a_variant_that_is_too_large_at_the_smallest_value_is_refused() -> None:
    with raises_problem(SpecError, "cannot-match", "1,000", "100"):
        solve(lambda value: 1000 + int(value), 100, whole=False, start=4.0, path="feedforward.expand")


def test_a_value_is_as_short_as_its_count_allows() -> None:
    result = solve(lambda value: round(value * 64), 300, whole=False, start=4.0, path="feedforward.expand")
    assert len(repr(result.value)) <= 6


def test_a_matched_width_is_valid_for_a_model() -> None:
    """Only multiples of the heads are: what lies between is no spec, and is passed over."""

    def count(width: float) -> int:
        if width % 8:
            raise SpecError(Problem(code="not-divisible", message=f"{width} is no multiple of 8"))
        return round(width * width)

    result = solve(count, 100 * 100, whole=True, start=64.0, path="dims.width")
    assert result.value in (96, 104)
    assert result.count - 10_000 in (96**2 - 10_000, 104**2 - 10_000)
    assert abs(result.count - 10_000) == 784
    same = solve(count, 64 * 64, whole=True, start=64.0, path="dims.width")
    assert isinstance(same.value, int)
    assert same.value == 64
    less = solve(count, 30 * 30, whole=True, start=64.0, path="dims.width")
    assert less.value == 32
    with raises_problem(SpecError, "cannot-match", "8", "64", "3"):
        solve(count, 3, whole=True, start=64.0, path="dims.width")


def test_an_option_that_does_not_change_the_count_is_refused() -> None:
    with raises_problem(SpecError, "cannot-match", "match.by", "feedforward.expand", "kv", "64"):
        solve(lambda value: 64, 100, whole=False, start=4.0, path="feedforward.expand", on="kv")
    with raises_problem(SpecError, "cannot-match", "position.length", "params", "640"):
        solve(lambda value: 640, 100, whole=True, start=4, path="position.length", on="params")


def test_a_cost_that_the_baseline_lacks_cannot_be_matched() -> None:
    with raises_problem(SpecError, "cannot-match", "match.on", "state", "0"):
        solve(lambda value: 64, 0, whole=False, start=4.0, path="feedforward.expand", on="state")


@pytest.mark.thorough
@given(st.sampled_from([4, 6, 8, 12, 16, 30]), st.integers(1, 40), st.data())
def test_the_nearest_of_few_valid_values_is_chosen(heads: int, target: int, data: st.DataObject) -> None:
    divisors = [value for value in range(1, heads + 1) if heads % value == 0]

    def count(value: float) -> int:
        if value not in divisors:
            raise SpecError(Problem(code="out-of-range", message="`kv_heads` must divide `dims.heads`"))
        return int(value)

    start = data.draw(st.sampled_from(divisors))
    result = solve(count, target, whole=True, start=start, path="attention.kv_heads", on="kv")
    assert abs(result.count - target) == min(abs(value - target) for value in divisors)
    assert result.value in divisors
