"""Power laws over scales: exponents against numpy, intervals against the formula, and what is not fitted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.analysis.p_values import t_quantile
from paribus.analysis.scaling_laws import fit_exponent, power_law, seed_exponents

SIZES = (1e4, 3e4, 1e5, 1e6)


@given(st.floats(-0.5, 0.5), st.floats(0.1, 50))
def test_an_exact_power_law_has_its_exponent(exponent: float, factor: float) -> None:
    losses = [factor * size**-exponent for size in SIZES]
    assert fit_exponent(SIZES, losses) == pytest.approx(exponent, abs=1e-9)
    law = power_law(SIZES, [{0: loss} for loss in losses], alpha=0.05)
    assert law is not None
    assert law.deviation == pytest.approx(0, abs=1e-9)
    assert (law.low, law.high, law.seeds) == (None, None, 1)


@given(st.lists(st.floats(0.5, 9), min_size=4, max_size=4))
def test_the_exponent_is_that_of_a_least_squares_line(losses: list[float]) -> None:
    slope = np.polyfit(np.log(SIZES), np.log(losses), 1)[0]
    assert fit_exponent(SIZES, losses) == pytest.approx(-slope, abs=1e-9)


def test_the_interval_is_students_over_seeds_and_the_difference_is_paired() -> None:
    noise = {0: 0.01, 1: -0.004, 2: 0.002, 3: -0.013}
    baseline = [{seed: 5 * size ** -(0.1 + shift) for seed, shift in noise.items()} for size in SIZES]
    variant = [{seed: 4 * size ** -(0.13 + shift) for seed, shift in noise.items()} for size in SIZES]
    law = power_law(SIZES, variant, alpha=0.05, baseline=seed_exponents(SIZES, baseline))
    assert law is not None
    exponents = [0.13 + shift for shift in noise.values()]
    half = -t_quantile(0.025, 3) * float(np.std(exponents, ddof=1)) / math.sqrt(4)
    assert law.low == pytest.approx(np.mean(exponents) - half)
    assert law.high == pytest.approx(np.mean(exponents) + half)
    assert law.against_baseline is not None
    assert law.against_baseline[0] == pytest.approx(0.03)  # the same noise in both: no spread
    assert (law.smallest, law.largest) == (1e4, 1e6)


def test_a_curve_that_is_no_power_law_deviates() -> None:
    losses = [dict.fromkeys(range(3), 2 + 1000.0 / size) for size in SIZES]
    law = power_law(SIZES, losses, alpha=0.05)
    assert law is not None
    assert law.deviation > 0.005


@pytest.mark.parametrize(
    ("sizes", "losses"),
    [
        ((1e4, 1e5), [{0: 3.0}, {0: 2.0}]),
        ((1e4, 1e4, 1e5), [{0: 3.0}, {0: 2.5}, {0: 2.0}]),
        ((1e4, 1e5, 1e6), [{0: 3.0}, {0: 0.0}, {0: 2.0}]),
        ((1e4, 1e5, 1e6), [{0: 3.0}, {1: 2.5}, {0: 2.0}]),
    ],
    ids=["two scales", "one size twice", "a loss of zero", "no common seed"],
)
def test_what_is_no_law_is_not_fitted(sizes: tuple[float, ...], losses: list[dict[int, float]]) -> None:
    assert power_law(sizes, losses, alpha=0.05) is None
