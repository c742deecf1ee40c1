"""Effects of factors: planted effects are recovered, shares add up, and intervals cover the truth."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.analysis.factorial import effect_value, interaction, level_pairs, levels, main_effect, shapley
from paribus.analysis.trials import Cell, Level
from paribus.analysis.verdicts import PairedDifferences, decide
from paribus.studies.fractional_factorial import best_fraction, members

TINY = 1e-12

counts_of = st.lists(st.integers(2, 3), min_size=1, max_size=4)
numbers = st.floats(-8, 8)


def cells_of(counts: list[int]) -> list[Cell]:
    return list(itertools.product(*(range(count) for count in counts)))


@given(counts_of, st.data())
def test_additive_effects_are_recovered_without_interactions(counts: list[int], data: st.DataObject) -> None:
    planted = {level: data.draw(numbers) for level in levels(counts)}
    start = data.draw(numbers)
    cells = cells_of(counts)
    values = {
        cell: start + math.fsum(planted[Level(factor, level)] for factor, level in enumerate(cell) if level)
        for cell in cells
    }
    for level in levels(counts):
        assert effect_value(main_effect(cells, level), values) == pytest.approx(planted[level], abs=TINY)
    for first_level, second_level in level_pairs(counts):
        assert effect_value(interaction(cells, first_level, second_level), values) == pytest.approx(0.0, abs=TINY)


@pytest.mark.thorough
@given(counts_of, st.data())
def test_a_joint_effect_of_two_levels_is_their_interaction(counts: list[int], data: st.DataObject) -> None:
    sizes = {pair: data.draw(numbers) for pair in level_pairs(counts)}
    cells = cells_of(counts)
    values = {
        cell: math.fsum(
            size
            for (first_level, second_level), size in sizes.items()
            if (cell[first_level[0]], cell[second_level[0]]) == (first_level[1], second_level[1])
        )
        for cell in cells
    }
    for pair, size in sizes.items():
        assert effect_value(interaction(cells, *pair), values) == pytest.approx(size, abs=TINY)


games = st.integers(1, 5).flatmap(
    lambda factors: st.tuples(st.just(factors), st.lists(numbers, min_size=2**factors, max_size=2**factors))
)


@pytest.mark.thorough
@given(games)
def test_shares_add_up_to_the_full_model_less_the_base(game: tuple[int, list[float]]) -> None:
    factors, cell_values = game
    values = dict(zip(cells_of([2] * factors), cell_values, strict=True))
    shares = [effect_value(shapley(factors, factor), values) for factor in range(factors)]
    assert math.fsum(shares) == pytest.approx(values[(1,) * factors] - values[(0,) * factors], abs=TINY)


@pytest.mark.thorough
@given(games)
def test_a_share_is_the_mean_of_what_a_factor_adds_over_all_orders(game: tuple[int, list[float]]) -> None:
    factors, cell_values = game
    values = dict(zip(cells_of([2] * factors), cell_values, strict=True))
    for factor in range(factors):
        added = []
        for order in itertools.permutations(range(factors)):
            without_factor = [int(index in order[: order.index(factor)]) for index in range(factors)]
            with_factor = [*without_factor]
            with_factor[factor] = 1
            added.append(values[tuple(with_factor)] - values[tuple(without_factor)])
        share = effect_value(shapley(factors, factor), values)
        assert share == pytest.approx(math.fsum(added) / len(added), abs=TINY)


@pytest.mark.thorough
@given(games)
def test_null_factors_have_no_share_and_equal_factors_equal_shares(
    game: tuple[int, list[float]],
) -> None:
    factors, cell_values = game
    of_sum = {cell: cell_values[sum(cell)] for cell in cells_of([2] * factors)}
    shares = [effect_value(shapley(factors, factor), of_sum) for factor in range(factors)]
    assert shares == pytest.approx([shares[0]] * factors, abs=TINY)
    idle = {(*cell, idle_level): value for cell, value in of_sum.items() for idle_level in (0, 1)}
    assert effect_value(shapley(factors + 1, factors), idle) == pytest.approx(0.0, abs=TINY)


@pytest.mark.parametrize("size", [(3, 1), (4, 1), (5, 2), (6, 2)])
def test_an_effect_of_a_fraction_is_the_sum_of_its_aliases(size: tuple[int, int]) -> None:
    fraction, draw = best_fraction(*size), random.Random(0)
    assert fraction is not None
    effects = [effect for effect in range(1, 1 << size[0]) if effect.bit_count() <= 2]
    # the model in -1 and +1: a main effect is twice its coefficient, an interaction four times
    sizes = {effect: draw.uniform(-1, 1) for effect in effects}

    def sign(cell: Cell, effect: int) -> int:
        return math.prod(2 * cell[factor] - 1 for factor in members(effect))

    cells = list(fraction.cells())
    values = {cell: math.fsum(size * sign(cell, effect) for effect, size in sizes.items()) for cell in cells}
    for effect in effects:
        effect_levels = [Level(factor, 1) for factor in members(effect)]
        weights = (
            main_effect(cells, effect_levels[0]) if len(effect_levels) == 1 else interaction(cells, *effect_levels)
        )
        aliases = [effect, *fraction.aliases(effect)]
        signed = math.fsum(sizes[alias] * sign(cells[0], alias) * sign(cells[0], effect) for alias in aliases)
        assert effect_value(weights, values) == pytest.approx(2 ** len(effect_levels) * signed, abs=TINY)


def test_effects_do_not_depend_on_an_offset_of_all_cells() -> None:
    cells = cells_of([2, 2])
    weights = [main_effect(cells, Level(0, 1)), interaction(cells, Level(0, 1), Level(1, 1)), shapley(2, 0)]
    assert [math.fsum(effect_weights.values()) for effect_weights in weights] == [0.0, 0.0, 0.0]


@pytest.mark.thorough
def test_intervals_of_a_family_cover_all_true_effects() -> None:
    """Five seeds with an offset of their own, three factors, three hundred studies: 95 % give or take four errors."""
    draw, counts, studies = random.Random(7), [2, 2, 2], 300
    cells = cells_of(counts)
    true = {cell: 0.3 * cell[0] - 0.2 * cell[1] + 0.4 * cell[0] * cell[2] for cell in cells}
    families = {
        "main": [main_effect(cells, level) for level in levels(counts)],
        "interactions": [interaction(cells, *pair) for pair in level_pairs(counts)],
        "shapley": [shapley(3, factor) for factor in range(3)],
    }
    covered = dict.fromkeys(families, 0)
    for _ in range(studies):
        seeds = []
        for _ in range(5):
            offset = draw.gauss(0, 1)
            seeds.append({cell: true[cell] + offset + draw.gauss(0, 0.2) for cell in cells})
        for name, family in families.items():
            paired = {
                str(place): PairedDifferences(
                    differences=tuple(effect_value(weights, seed) for seed in seeds), diverged=0, planned=5
                )
                for place, weights in enumerate(family)
            }
            verdicts = decide(paired, better="lower", margin=None)
            covered[name] += all(
                (-math.inf if verdict.low is None else verdict.low)
                <= effect_value(weights, true)
                <= (math.inf if verdict.high is None else verdict.high)
                for verdict, weights in zip(verdicts.values(), family, strict=True)
            )
    error = math.sqrt(0.95 * 0.05 / studies)
    assert {name for name, count in covered.items() if count / studies < 0.95 - 4 * error} == set()
