"""Effects of factors, as weights on the cells of a factorial: of one seed's numbers each is a sum, so pairing holds.

- A **main effect** is how much a level of a factor changes the metric, on average over the levels of all others.
- An **interaction** of two is how much more the one changes it where the other is on than where it is not.
- A **Shapley share** is what a factor adds to those that are on already, on average over all orders of putting them on
  (Shapley 1953): the shares of all factors add up to the full model less the base, whatever they do to each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import NamedTuple, final

Cell = tuple[int, ...]  # the level of each factor; 0 is the base's
Weights = Mapping[Cell, float]


@final
class Level(NamedTuple):
    """A level of a factor that is not the base's."""

    factor: int
    level: int


def main_effect(cells: Sequence[Cell], of: Level) -> Weights:
    """The mean of the cells with this level, less that of those with the base's."""
    on = [cell for cell in cells if cell[of.factor] == of.level]
    off = [cell for cell in cells if cell[of.factor] == 0]
    return {**dict.fromkeys(on, 1 / len(on)), **dict.fromkeys(off, -1 / len(off))}


def interaction(cells: Sequence[Cell], one: Level, other: Level) -> Weights:
    """The effect of the one where the other is on, less that where the other is off."""
    weights: dict[Cell, float] = {}
    for first, second in product((True, False), repeat=2):
        wanted = (one.level if first else 0, other.level if second else 0)
        found = [cell for cell in cells if (cell[one.factor], cell[other.factor]) == wanted]
        weights |= dict.fromkeys(found, (1 if first == second else -1) / len(found))
    return weights


def shapley(factors: int, of: int) -> Weights:
    """Of factors that are on or off, all combinations of them given."""
    weights: dict[Cell, float] = {}
    for cell in product((0, 1), repeat=factors):
        others = sum(cell) - cell[of]
        share = 1 / (factors * math.comb(factors - 1, others))
        weights[cell] = share if cell[of] else -share
    return weights


def levels(counts: Sequence[int]) -> list[Level]:
    """All levels but the base's, of factors with so many levels each, the base's counted."""
    return [Level(factor, level) for factor, count in enumerate(counts) for level in range(1, count)]


def pairs(counts: Sequence[int]) -> Iterator[tuple[Level, Level]]:
    """Levels of two factors."""
    return ((one, other) for one, other in combinations(levels(counts), 2) if one.factor != other.factor)


def contrast(weights: Weights, values: Mapping[Cell, float]) -> float:
    """What an effect comes to, of the numbers of one seed."""
    return math.fsum(weight * values[cell] for cell, weight in weights.items())
