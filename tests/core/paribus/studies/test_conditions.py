"""Conditions on axes: each combination that makes sense, once, and none that does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.planning.plan import Plan
from paribus.studies.designs import DESIGNS, Variation, applicable_cells, variant_count

VARY: dict[str, Any] = {
    "attention": ["mqa", "restricted"],
    "attention.window": {"values": [8, 16], "when": {"attention": "restricted"}},
    "norm": ["layernorm", {"value": "rmsnorm", "when": {"attention": ["mqa", "gqa"]}}],
}
Grid = Callable[..., Plan]


def test_an_axis_is_in_a_cell_only_where_it_applies(grid: Grid) -> None:
    result = grid(vary=VARY)
    assert [variant.name for variant in result.variants][1:] == [
        "attention=mqa norm=layernorm",
        "attention=mqa norm=rmsnorm",
        "attention=restricted attention.window=8 norm=layernorm",
        "attention=restricted attention.window=16 norm=layernorm",
    ]
    assert (
        result.trials_of("attention=restricted attention.window=16 norm=layernorm")[0].spec["attention"]["window"] == 16
    )
    assert result.excluded == ()


LETTERS = ("a", "b", "c", "d")


@st.composite
def axes(draw: st.DrawFn) -> Variation:
    """Axes in a row, each value with a condition on any of the axes before it, or with none."""
    vary = {letter: list(range(draw(st.integers(1, 3)))) for letter in LETTERS[: draw(st.integers(1, 4))]}
    when: dict[str, list[dict[str, int]]] = {}
    for place, letter in enumerate(vary):
        previous = list(vary)[:place]
        condition = (
            st.dictionaries(st.sampled_from(previous), st.integers(0, 2), max_size=2) if previous else st.just({})
        )
        when[letter] = [draw(condition) for _ in vary[letter]]
    return Variation(vary=vary, when=when)


@pytest.mark.thorough
@given(axes())
def test_every_condition_holds_in_each_combination_and_no_other_value_applies(
    varied: Variation,
) -> None:
    result = [tuple(cell.items()) for cell in applicable_cells(varied.vary, varied.when)]
    assert len(result) == len(set(result)) == variant_count("grid", varied) == len(list(DESIGNS["grid"](varied)))

    def applies(cell: dict[str, int], axis: str, value: int) -> bool:
        when = varied.when[axis][value]
        return all(cell.get(second) == expected for second, expected in when.items())

    options = [[None, *values] for values in varied.vary.values()]
    every = ({key: value for key, value in zip(varied.vary, sample, strict=True) if value is not None}
             for sample in itertools.product(*options))  # fmt: skip
    brute = {
        tuple(cell.items())
        for cell in every
        if all(applies(cell, axis, value) for axis, value in cell.items())
        and not any(
            applies(cell, axis, value) for axis in varied.vary if axis not in cell for value in varied.vary[axis]
        )
    }
    assert set(result) == brute


def test_very_many_combinations_are_counted_quickly_by_an_upper_bound() -> None:
    many = list(range(3000))
    varied = Variation(vary={"a": many, "b": many}, when={"b": [{"a": 0}] * 3000})
    assert variant_count("grid", varied) == 9_000_000
    assert (
        variant_count("grid", Variation(vary={"a": many, "b": [1, 2], "c": many}, when={"b": [{"a": 0}] * 2}))
        == 3001 * 3000
    )


FAULTS = [
    (
        {"vary": {"norm": {"values": ["rmsnorm"], "when": {"attention": "mqa"}}, "attention": ["mqa"]}},
        "unknown-axis",
        ("attention",),
    ),
    (
        {"vary": {"attention": ["mqa"], "norm": {"values": ["rmsnorm"], "when": {"atention": "mqa"}}}},
        "unknown-axis",
        ("atention", "attention"),
    ),
    (
        {"vary": {"attention": ["mqa"], "norm": {"values": ["rmsnorm"], "when": {"attention": "gqa"}}}},
        "never-applies",
        ("attention", "mqa"),
    ),
    (
        {"vary": {"attention": ["mqa"], "norm": {"values": ["rmsnorm"], "when": "mqa"}}},
        "wrong-type",
        ("vary.norm.when",),
    ),
    ({"vary": {"attention": {"when": {"norm": "rmsnorm"}}}}, "wrong-type", ("vary.attention",)),
    ({"vary": {"attention": {"values": "mqa"}}}, "wrong-type", ("vary.attention.values",)),
    ({"design": "one-at-a-time"}, "unused-option", ("one-at-a-time", "design: grid")),
    ({"design": "factorial"}, "unused-option", ("factorial",)),
]


@pytest.mark.parametrize(("said", "code", "values"), FAULTS)
def test_a_condition_without_effect_is_refused(
    grid: Grid, said: dict[str, Any], code: str, values: tuple[str, ...]
) -> None:
    with raises_problem(SpecError, code, *values):
        grid(**{"vary": VARY, **said})
