"""Few rows, in which any three values that go together do."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.testing.matrix import Combination, covering

Axes = dict[str, tuple[str, ...]]


@st.composite
def constrained(draw: Any) -> tuple[Axes, list[Combination]]:
    """Axes, and pairs of values that never go together."""
    axes = {f"axis {at}": tuple(f"{at}.{value}" for value in range(draw(st.integers(1, 4)))) for at in range(4)}
    pairs = [
        ((one, a), (other, b))
        for one, other in itertools.combinations(axes, 2)
        for a, b in itertools.product(axes[one], axes[other])
    ]
    return axes, draw(st.lists(st.sampled_from(pairs), max_size=6))


def wholes(axes: Axes, forbidden: list[Combination]) -> list[Combination]:
    """All rows that may be, by trying each."""
    rows = [tuple(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [row for row in rows if not any(set(pair) <= set(row) for pair in forbidden)]


@given(constrained(), st.integers(1, 3))
def test_whatever_may_stand_together_does_and_nothing_else(case: tuple[Axes, list[Combination]], strength: int) -> None:
    axes, forbidden = case
    every = wholes(axes, forbidden)
    possible = {few for row in every for count in range(1, 5) for few in itertools.combinations(row, count)}
    rows = covering(axes, possible.__contains__, strength)
    assert all(tuple((axis, row[axis]) for axis in axes) in every for row in rows)
    together = {few for row in rows for few in itertools.combinations(((axis, row[axis]) for axis in axes), strength)}
    assert together == {few for few in possible if len(few) == strength}
    assert rows == covering(axes, possible.__contains__, strength)  # no draws


@pytest.mark.parametrize(("values", "strength", "most"), [(2, 2, 6), (3, 2, 15), (2, 3, 14), (4, 3, 120)])
def test_rows_are_few(values: int, strength: int, most: int) -> None:
    axes = {str(axis): tuple(map(str, range(values))) for axis in range(5)}
    assert values**strength <= len(covering(axes, lambda few: True, strength)) <= most
