"""Cases that run each time: covering arrays, and a few at equal distances."""

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.covering_cases import covering_rows, spread_indices

ROWS = st.lists(st.fixed_dictionaries({name: st.integers(0, 3) for name in "abc"}), max_size=30)


@given(ROWS, st.integers(1, 3))
def test_chosen_rows_have_every_combination_of_all_rows(rows: list[dict[str, int]], strength: int) -> None:
    def found(indices: set[int]) -> set[object]:
        return {cells for index in indices for cells in combinations(sorted(rows[index].items()), strength)}

    assert found(covering_rows(rows, strength)) == found({*range(len(rows))})


def test_a_product_is_covered_by_few_rows() -> None:
    rows = [dict(zip("abcd", values, strict=True)) for values in product(range(4), repeat=4)]
    assert 16 <= len(covering_rows(rows)) <= 28
    assert len(covering_rows(rows, 1)) == 4


def test_values_without_a_hash_and_of_equal_numbers_are_distinct() -> None:
    rows: list[dict[str, object]] = [{"a": value} for value in ([1], [2], [1], True, 1)]
    assert covering_rows(rows, 1) == {0, 1, 3, 4}


@pytest.mark.parametrize(
    ("length", "count", "expected"), [(9, 3, {0, 3, 6}), (5, 1, {0}), (2, 4, {0, 1}), (0, 2, set())]
)
def test_few_cases_are_spread_over_all(length: int, count: int, expected: set[int]) -> None:
    assert spread_indices(length, count) == expected
