"""Fractions: what they confound is what brute force finds, and no fraction confounds less."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.studies.fractional_factorial import RegularFraction, best_fraction, members

sizes = st.integers(3, 8).flatmap(lambda factors: st.tuples(st.just(factors), st.integers(1, factors - 2)))


def column(cells: list[tuple[int, ...]], effect: int) -> tuple[int, ...]:
    """The column of an effect in -1 and +1, as a table of contrasts has it."""
    return tuple((-1) ** sum(1 - cell[factor] for factor in members(effect)) for cell in cells)


@given(sizes)
def test_confounded_effects_have_the_same_column(size: tuple[int, int]) -> None:
    result = best_fraction(*size)
    if result is None:
        return
    cells = list(result.cells())
    effects = [effect for effect in range(1, 1 << size[0]) if effect.bit_count() <= 3]
    columns = {effect: column(cells, effect) for effect in effects}
    for effect in effects:
        mirrored = tuple(-item for item in columns[effect])
        alike = {other for other in effects if other != effect and columns[other] in (columns[effect], mirrored)}
        assert set(result.aliases(effect, limit=3)) == alike


@given(sizes)
def test_a_fraction_has_its_share_of_the_cells_each_once_and_the_base_first(size: tuple[int, int]) -> None:
    result = best_fraction(*size)
    if result is None:
        return
    cells = list(result.cells())
    assert len(set(cells)) == len(cells) == 2 ** (size[0] - size[1])
    assert not any(cells[0])
    assert result.resolution >= 3
    for initial, second in itertools.combinations(range(size[0]), 2):
        pairs = Counter((cell[initial], cell[second]) for cell in cells)
        assert pairs == dict.fromkeys(itertools.product((0, 1), repeat=2), len(cells) // 4)


# Box, Hunter and Hunter, table 12.15: the highest resolution of 2^(factors - halvings)
BEST = {
    (3, 1): 3, (4, 1): 4, (5, 1): 5, (5, 2): 3, (6, 1): 6, (6, 2): 4, (6, 3): 3, (7, 1): 7, (7, 2): 4, (7, 3): 4,
    (7, 4): 3, (8, 2): 5, (8, 3): 4, (8, 4): 4, (9, 2): 6, (9, 3): 4, (9, 4): 4, (9, 5): 3, (10, 3): 5, (10, 4): 4,
    (11, 4): 5, (12, 6): 4, (15, 11): 3, (16, 10): 4, (20, 10): 6,
}  # fmt: skip


@pytest.mark.parametrize(("size", "resolution"), BEST.items())
def test_the_resolution_is_the_highest_that_there_is(size: tuple[int, int], resolution: int) -> None:
    result = best_fraction(*size)
    assert result is not None
    assert result.resolution == resolution


def test_no_fraction_confounds_main_effects() -> None:
    assert best_fraction(3, 2) is None
    assert best_fraction(8, 5) is None
    assert best_fraction(2, 1) is None


def test_a_fraction_that_is_too_large_does_not_exist() -> None:
    assert best_fraction(40, 1) is None
    assert best_fraction(40, 30) is None


def test_a_half_of_four_factors_confounds_pairs_with_pairs() -> None:
    assert best_fraction(4, 1) == RegularFraction(4, (0b0111,))
    assert RegularFraction(4, (0b0111,)).aliases(0b0011) == (0b1100,)
    assert RegularFraction(4, (0b0111,)).aliases(0b0001) == ()
