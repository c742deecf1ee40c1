"""Sensitivity to a tuned number: its value, its intervals, and the grids that have none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from paribus.analysis.sensitivity import Sensitivity, candidates_within_noise, regrets, sensitivities
from paribus.planning.tuning import Candidate, VariantTuning
from paribus.storage.store import Trial

GRID = (0.001, 0.002, 0.004)


def tuning(variant: str, scores: Sequence[Sequence[float | None]], better: str = "lower") -> VariantTuning:
    trial = Trial("", variant, 0, {}, {}, "", "")
    candidates = tuple(
        Candidate((("optimizer.lr", value),), (trial,) * len(of_seeds), tuple(of_seeds))
        for value, of_seeds in zip(GRID, scores, strict=True)
    )
    return VariantTuning("same", variant, better, candidates, 0, (), 1)


def answers(*tunings: VariantTuning, values: dict[str, Sequence[Any]] | None = None) -> list[Sensitivity]:
    return sensitivities(tunings, values or {"optimizer.lr": GRID}, 0.05)


def test_it_is_the_mean_distance_from_the_best_value() -> None:
    baseline = tuning("baseline", [(2.0, 2.2), (1.7, 1.9), (1.85, 2.05)])
    variant = tuning("variant", [(2.3, 2.5), (1.7, 1.9), (2.0, 2.2)])
    first, second = answers(baseline, variant)
    assert first.value == pytest.approx(0.15)
    assert first.against_baseline is None
    assert second.value == pytest.approx(0.3)
    assert second.against_baseline is not None
    assert second.against_baseline[0] == pytest.approx(0.15)


def test_the_best_value_is_chosen_for_all_seeds() -> None:
    assert regrets([(1.0, 3.0), (2.0, 1.0), (3.0, 3.0)]) == pytest.approx([0.0, 4 / 3])


def test_a_higher_metric_may_be_better() -> None:
    [found] = answers(tuning("baseline", [(0.5,), (0.9,), (0.7,)], "higher"))
    assert found.value == pytest.approx(0.2)
    assert found.low is None


def test_a_variant_is_never_in_the_place_of_the_baseline() -> None:
    baseline = tuning("baseline", [(1.0,), (float("nan"),), (3.0,)])
    found = answers(baseline, tuning("first", [(2.0,), (1.0,), (3.0,)]), tuning("second", [(2.0,), (1.0,), (3.0,)]))
    assert [item.against_baseline for item in found] == [None, None]


def test_values_that_are_not_told_apart_from_the_best() -> None:
    """The interval of a paired difference has 0: here 0.01 ± 0.05 and 1 ± 0.05, of Student's t with two degrees."""
    scores = [(2.0, 2.2, 2.4), (2.03, 2.21, 2.39), (3.02, 3.2, 3.38)]
    (close,) = candidates_within_noise(tuning("baseline", scores), 0.05)
    assert close.cell == (("optimizer.lr", 0.002),)
    assert len(candidates_within_noise(tuning("baseline", scores), 1e-9)) == 2


@pytest.mark.parametrize("scores", [[(2.0,), (2.1,), (2.2,)], [(2.0, 2.1), (float("nan"), 2.1), (2.0, None)]])
def test_one_seed_and_values_without_a_metric_are_not_told_apart(scores: list[Sequence[float | None]]) -> None:
    assert candidates_within_noise(tuning("baseline", scores), 0.05) == []


@pytest.mark.parametrize("score", [None, float("nan"), float("inf")])
def test_a_value_without_a_metric_gives_none(score: float | None) -> None:
    assert answers(tuning("baseline", [(1.0, 1.0), (2.0, score), (3.0, 3.0)])) == []


@pytest.mark.parametrize(
    "values",
    [{"optimizer.lr": GRID[:2]}, {"optimizer.lr": GRID, "dropout": (0.1,)}, {"norm": ("rmsnorm", "layernorm", "none")}],
)
def test_other_grids_have_none(values: dict[str, Sequence[Any]]) -> None:
    assert answers(tuning("baseline", [(1.0,), (2.0,), (3.0,)]), values=values) == []


def test_the_interval_covers_the_true_sensitivity() -> None:
    """2,000 studies: 3 standard errors are 1.5 %."""
    rng, covered = random.Random(0), 0
    losses = (2.05, 2.0, 2.05)
    for _ in range(2_000):
        scores = [[loss + rng.gauss(0, 0.02) for _ in range(3)] for loss in losses]
        [found] = answers(tuning("baseline", scores))
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.1 / 3 <= found.high
    assert 0.935 <= covered / 2_000 <= 0.985
