"""What a variant is worth in compute: the multiplier, its interval and its coverage, and the trend over sizes."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.analysis.p_values import interval, summarise
from paribus.analysis.verdicts import Better
from paribus.analysis.worth import Multiplier, multiplier, trend

BUDGETS = (0.5, 0.71, 1.0, 1.41, 2.0)


def curve(budget: float) -> float:
    return 2 + math.pow(budget, -0.3)


def exact(budgets: dict[float, float], variant: float, better: Better = "lower") -> Multiplier | None:
    """Return the multiplier of values without noise."""
    values = {budget: dict.fromkeys(range(3), value) for budget, value in budgets.items()}
    return multiplier(values, dict.fromkeys(range(3), variant), better=better, alpha=0.05)


@given(
    st.floats(0.55, 1.9), st.sampled_from(["lower", "higher"]), st.sampled_from([BUDGETS, (0.5, 1.0, 2.0), (0.5, 2.0)])
)
def test_without_noise_a_parabola_is_met_exactly(true: float, better: Better, budgets: tuple[float, ...]) -> None:
    def metric(budget: float) -> float:
        bend = 0.2 if len(budgets) > 2 else 0.0  # two budgets have a line
        return (1 if better == "lower" else -1) * (3 - math.log(budget) + bend * math.log(budget) ** 2)

    found = exact({budget: metric(budget) for budget in budgets}, metric(true), better)
    assert found is not None
    assert found.value == pytest.approx(true, rel=1e-6)
    assert [found.low, found.high] == pytest.approx([true, true], rel=1e-6)


@pytest.mark.parametrize(
    ("variant", "text"),
    [
        (curve(3.0), "> 2.00\N{MULTIPLICATION SIGN}"),
        (curve(0.2), "< 0.500\N{MULTIPLICATION SIGN}"),
        (curve(1.0), "1.00\N{MULTIPLICATION SIGN} [1.00\N{MULTIPLICATION SIGN}, 1.00\N{MULTIPLICATION SIGN}]"),
    ],
)
def test_beyond_the_budgets_their_limit_is_given(variant: float, text: str) -> None:
    found = exact({budget: curve(budget) for budget in BUDGETS}, variant)
    assert found is not None
    assert found.text == text


def test_a_baseline_that_does_not_improve_gives_no_answer() -> None:
    assert exact({budget: 2 + budget for budget in BUDGETS}, 3.0) is None
    assert exact({1.0: 2.0}, 2.0) is None
    assert exact(dict(zip(BUDGETS, (3.0, 3.3, 3.1, 2.9, 2.8), strict=True)), 3.1) is None  # it has this loss twice


def draw(
    rng: random.Random, seeds: int, true: float, noise: float
) -> tuple[dict[float, dict[int, float]], dict[int, float]]:
    """Return trials of the baseline and of a variant; a seed shifts all of its trials."""
    shifts = {seed: rng.gauss(0, 0.03) for seed in range(seeds)}
    budgets = {
        budget: {seed: curve(budget) + shift + rng.gauss(0, noise) for seed, shift in shifts.items()}
        for budget in BUDGETS
    }
    return budgets, {seed: curve(true) + shift + rng.gauss(0, noise) for seed, shift in shifts.items()}


@given(st.integers(0, 10**6), st.integers(2, 12), st.floats(0.6, 1.7), st.sampled_from([0.005, 0.05, 0.3]))
def test_the_interval_excludes_1_where_that_of_the_difference_excludes_0(
    key: int, seeds: int, true: float, noise: float
) -> None:
    budgets, variant = draw(random.Random(key), seeds, true, noise)
    found = multiplier(budgets, variant, better="lower", alpha=0.05)
    if found is None:
        return
    differences = [variant[seed] - budgets[1.0][seed] for seed in variant]
    low, high = interval(summarise(differences), 0.05) or (-math.inf, math.inf)
    is_covered = (found.low or 0) <= 1 + 1e-9 and (found.high or math.inf) >= 1 - 1e-9
    if low <= 0 <= high:
        assert is_covered
    elif noise == 0.005:  # with more noise, a curve that falls again may have parts of the interval on both sides
        assert not is_covered


@given(st.integers(0, 10**6), st.floats(0.1, 10), st.floats(-5, 5), st.randoms(use_true_random=False))
def test_units_of_the_metric_and_the_order_of_seeds_do_not_count(
    key: int, scale: float, shift: float, order: random.Random
) -> None:
    budgets, variant = draw(random.Random(key), 5, 1.2, 0.02)
    found = multiplier(budgets, variant, better="lower", alpha=0.05)
    seeds = list(variant)
    order.shuffle(seeds)
    other = multiplier(
        {budget: {seed: scale * values[seed] + shift for seed in seeds} for budget, values in budgets.items()},
        {seed: scale * variant[seed] + shift for seed in seeds},
        better="lower",
        alpha=0.05,
    )
    assert (found is None) == (other is None)
    for name in ("value", "low", "high"):
        first, second = getattr(found, name, None), getattr(other, name, None)
        assert first == second if first is None else first == pytest.approx(second, rel=1e-6)


@pytest.mark.parametrize("noise", [1e-6, 1e-4, 1e-3, 1e-2])
def test_an_interval_is_as_short_as_the_noise(noise: float) -> None:
    found = multiplier(*draw(random.Random(0), 5, 1.31, noise), better="lower", alpha=0.05)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.value is not None
    assert found.low < found.value < found.high
    assert 3 * noise < found.high - found.low < 30 * noise


@pytest.mark.parametrize("seeds", [5, 12])
def test_intervals_cover_the_true_multiplier(seeds: int) -> None:
    """`docs/error-rates.md` has more cases. 3 standard errors of 1,000 studies are 2 %."""
    rng, covered = random.Random(seeds), 0
    for _ in range(1_000):
        found = multiplier(*draw(rng, seeds, 1.31, 0.02), better="lower", alpha=0.05)
        assert found is not None
        covered += (found.low or 0) <= 1.31 <= (found.high or 9)
    assert 0.93 <= covered / 1_000 <= 0.97


def test_a_ratio_of_costs_widens_the_interval() -> None:
    own = Multiplier(value=1.2, low=1.1, high=1.3, is_above=False, smallest=0.5, largest=2.0, n=5)
    exact_cost, measured = own.scaled(0.5), own.scaled(0.5, (0.45, 0.55))
    assert [exact_cost.low, exact_cost.high] == pytest.approx([0.55, 0.65])
    assert measured.value == pytest.approx(0.6)
    assert measured.low == pytest.approx(0.6 * math.exp(-math.hypot(math.log(1.2 / 1.1), math.log(0.5 / 0.45))))
    assert measured.high is not None
    assert measured.high > 0.65
    assert own.scaled(2.0).largest == 4.0
    certain = Multiplier(value=1.3, low=1.3, high=1.3, is_above=False, smallest=0.5, largest=2.0, n=5)
    widened = certain.scaled(1.0, (0.9, 1.1))
    assert [widened.low, widened.high] == pytest.approx([1.3 * 0.9, 1.3 * 1.1])


def test_the_trend_is_the_line_through_the_logarithms() -> None:
    def of(value: float, spread: float) -> Multiplier:
        return Multiplier(
            value=value, low=value / spread, high=value * spread, is_above=False, smallest=0.5, largest=2.0, n=5
        )

    found = trend([1e6, 2e6, 4e6], [of(1.6, 1.1), of(1.4, 1.1), of(1.225, 1.1)])
    assert found is not None
    assert found.factor == pytest.approx(0.875)
    assert found.high / found.factor == pytest.approx(1.1 ** (1 / math.sqrt(2)))
    assert trend([1e6, 1e6], [of(1.6, 1.1), of(1.4, 1.1)]) is None
