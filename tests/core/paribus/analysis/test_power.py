"""Power, compared with scipy integrals, closed forms and simulated studies."""

import math
from itertools import pairwise

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from paribus.analysis.p_values import interval, summarise
from paribus.analysis.power import (
    chi_squared_cdf,
    chi_squared_quantile,
    power_of_equivalence,
    power_to_detect,
    seeds_for_power,
    smallest_effect,
    spread_interval,
)


def by_quadrature(effect: float, n: int, alpha: float) -> float:
    """The noncentral t of scipy is nan where it is hardest; an integral over the spread is not."""
    df, noncentral, limit = n - 1, effect * math.sqrt(n), scipy.stats.t.isf(alpha / 2, n - 1)

    def density(s: float) -> float:
        tails = scipy.stats.norm.sf(limit * s - noncentral) + scipy.stats.norm.cdf(-limit * s - noncentral)
        return float(tails * scipy.stats.chi.pdf(s * math.sqrt(df), df) * math.sqrt(df))

    near = 8 / math.sqrt(2 * df)
    places = [0.0, max(0.0, 1 - near), 1 + near, 30.0]
    return math.fsum(scipy.integrate.quad(density, *ends, limit=200)[0] for ends in pairwise(places))


@pytest.mark.few(3)
@pytest.mark.parametrize("n", [2, 3, 5, 8, 200])
@pytest.mark.parametrize("alpha", [0.05, 0.0125])
def test_the_power_to_detect_equals_an_integral_by_scipy(n: int, alpha: float) -> None:
    for effect in (0.1, 1.0, 5.0):
        assert power_to_detect(effect, 1.0, n, alpha) == pytest.approx(by_quadrature(effect, n, alpha), abs=1e-5)


def test_the_power_equals_scipys_noncentral_t() -> None:
    limit = scipy.stats.t.isf(0.025, 4)
    noncentral = 1.2 * math.sqrt(5)
    expected = scipy.stats.nct.sf(limit, 4, noncentral) + scipy.stats.nct.cdf(-limit, 4, noncentral)
    assert power_to_detect(1.2, 1.0, 5, 0.05) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("n", [2, 5, 50])
def test_without_an_effect_the_power_is_the_level(n: int) -> None:
    assert power_to_detect(0.0, 0.3, n, 0.05) == pytest.approx(0.05, abs=1e-5)


@pytest.mark.parametrize(("n", "margin", "effect"), [(3, 4.0, 0.0), (5, 2.0, 0.5), (8, 1.5, -1.0)])
def test_the_power_of_equivalence_equals_a_simulation(n: int, margin: float, effect: float) -> None:
    draws = np.random.default_rng(n).normal(effect, 1.0, (100_000, n))
    half = scipy.stats.t.isf(0.0125 / 2, n - 1) * draws.std(axis=1, ddof=1) / math.sqrt(n)
    inside = float(np.mean(np.abs(draws.mean(axis=1)) + half < margin))
    assert power_of_equivalence(margin, 1.0, n, 0.0125, effect) == pytest.approx(
        inside, abs=4 * math.sqrt(0.25 / 100_000)
    )


def test_the_unit_does_not_matter() -> None:
    assert power_to_detect(2.0, 4.0, 5, 0.05) == pytest.approx(power_to_detect(0.5, 1.0, 5, 0.05))
    assert power_of_equivalence(8.0, 4.0, 5, 0.05) == pytest.approx(power_of_equivalence(2.0, 1.0, 5, 0.05))


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_the_smallest_effect_has_exactly_the_requested_power(n: int) -> None:
    effect = smallest_effect(0.7, n, 0.0125, 0.8)
    assert power_to_detect(effect, 0.7, n, 0.0125) >= 0.8 > power_to_detect(0.999 * effect, 0.7, n, 0.0125)


def test_the_returned_seeds_are_the_fewest_with_the_power() -> None:
    def reached(n: int) -> float:
        return power_to_detect(0.4, 1.0, n, 0.0125)

    seeds = seeds_for_power(reached, 0.9)
    assert seeds is not None
    assert reached(seeds) >= 0.9 > reached(seeds - 1)
    assert seeds_for_power(lambda n: 1.0, 0.9) == 2
    assert seeds_for_power(lambda n: 0.5, 0.9, limit=50) is None


def test_seed_counts_are_limited() -> None:
    assert seeds_for_power(lambda n: power_of_equivalence(1.0, 1.0, n, 0.05, effect=1.0), 0.8) is None


@pytest.mark.parametrize("df", [1, 2, 3, 7, 100, 5000])
def test_chi_squared_is_that_of_scipy(df: int) -> None:
    for p in (1e-4, 0.025, 0.5, 0.975):
        x = float(scipy.stats.chi2.ppf(p, df))
        assert chi_squared_quantile(p, df) == pytest.approx(x, rel=1e-9)
        assert chi_squared_cdf(x, df) == pytest.approx(p, rel=1e-9)
    assert chi_squared_cdf(0.0, df) == 0.0
    assert chi_squared_cdf(1e9, df) == 1.0


@pytest.mark.parametrize("n", [2, 5, 30])
def test_the_interval_of_a_spread_holds_the_true_one_in_95_of_100_samples(n: int) -> None:
    sds = np.random.default_rng(n).normal(0.0, 2.0, (20_000, n)).std(axis=1, ddof=1)
    low, high = spread_interval(1.0, n)  # it only scales
    assert np.mean((low * sds <= 2.0) & (high * sds >= 2.0)) == pytest.approx(0.95, abs=0.007)


def test_the_power_is_that_of_the_interval_of_a_verdict() -> None:
    draws = np.random.default_rng(0).normal(1.0, 1.0, (4000, 5))
    intervals = (interval(summarise(list(map(float, row))), 0.05) for row in draws)
    clear = sum(ends is not None and not ends[0] <= 0 <= ends[1] for ends in intervals) / 4000
    assert power_to_detect(1.0, 1.0, 5, 0.05) == pytest.approx(clear, abs=0.032)


def test_too_few_pairs_and_invalid_spreads_are_refused() -> None:
    with pytest.raises(ValueError, match="`n` must be at least 2, for a spread, but is 1"):
        power_to_detect(1.0, 1.0, 1, 0.05)
    with pytest.raises(ValueError, match="`n` must be at least 2, for a spread, but is 1"):
        spread_interval(1.0, 1)
    with pytest.raises(ValueError, match="`sd` must be positive and finite, but is 0"):
        power_to_detect(1.0, 0, 5, 0.05)
    with pytest.raises(ValueError, match="`margin` must be positive and finite, but is -1"):
        power_of_equivalence(-1, 1.0, 5, 0.05)
    with pytest.raises(ValueError, match=r"`power` must lie between 0 and 1, but is 1\.5"):
        smallest_effect(1.0, 5, 0.05, 1.5)
