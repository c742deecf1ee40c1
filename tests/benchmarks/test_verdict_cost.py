"""The cost of a verdict: seeds of both ways, against simulation and scipy."""

from __future__ import annotations

import random

import numpy as np
import pytest
import scipy.stats
from benchmarks.verdict_cost import Effect, effects, planned_seeds, row_of, sequential_seeds, usual_seeds


def effect(difference: float, noise: float = 0.1, *, paired: bool = False, variants: int = 1) -> Effect:
    """Return an effect whose arms have 400 seeds, with noise of their own, or all noise in common."""
    rng = np.random.default_rng(0)
    baseline = rng.normal(0, noise, 400)
    own = rng.normal(0, noise / 10, 400) if paired else rng.normal(0, noise, 400) - baseline
    values = baseline + own - own.mean() + difference
    return Effect("study", "variant", variants, 100, 0.05, tuple(baseline), tuple(values))


@pytest.mark.parametrize("variants", [1, 4])
def test_the_usual_seeds_detect_the_margin_with_the_power_of_a_t_test(variants: int) -> None:
    case = effect(0.3, variants=variants)
    seeds = usual_seeds(case)
    rng, sd = np.random.default_rng(1), case.unpaired_sd / 2**0.5
    p = scipy.stats.ttest_ind(
        rng.normal(0, sd, (4000, seeds)), rng.normal(0.05, sd, (4000, seeds)), axis=1, equal_var=False
    ).pvalue
    assert (p < 0.05 / variants).mean() == pytest.approx(0.8, abs=0.03)


@pytest.mark.thorough
def test_large_differences_are_decided_early() -> None:
    """The number of seeds is planned for the margin, and a larger difference needs fewer."""
    means = [sequential_seeds(effect(difference), 50, random.Random(0)) for difference in (0.05, 0.2, 1.0)]
    seeds = [mean for mean, _ in means]
    assert seeds == sorted(seeds, reverse=True)
    assert seeds[-1] <= 8 < seeds[0] <= planned_seeds(effect(0.05))
    assert means[-1][1] == 1


@pytest.mark.thorough
def test_pairs_with_common_noise_need_fewer_seeds() -> None:
    assert planned_seeds(effect(0.05, paired=True)) < planned_seeds(effect(0.05)) / 10
    row = row_of(effect(0.5, paired=True), faster_step=2.0, simulations=20)
    assert row["cost"] == pytest.approx(row["expected_seeds"] / row["usual_seeds"] / 2)
    assert row["cost_between"][0] <= row["cost"] <= row["cost_between"][1]


def test_every_shipped_study_has_its_effects() -> None:
    found = [(case.study, case.variant) for case in effects()]
    assert len(set(found)) == len(found)
    assert ("quickstart", "attention=mqa") in found
    assert ("translation", "ConvS2S") in found
    assert not any(variant == "baseline" for _, variant in found)
