"""Always-valid t-tests: the Bayes factor that they are, and the share of studies that they mislead at any look."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from paribus.analysis.always_valid import EFFECT_SD, always_valid_p, always_valid_t
from paribus.analysis.p_values import interval, seeds_needed, summarise, two_sided_p

ns = st.integers(2, 400)
alphas = st.sampled_from((0.2, 0.05, 0.0125, 0.001))


@pytest.mark.parametrize("n", [2, 3, 5, 8, 30])
@pytest.mark.parametrize("t", [0.0, 0.7, 2.5, 6.0])
def test_the_p_value_is_one_over_the_bayes_factor_of_the_prior(n: int, t: float) -> None:
    def likelihood(effect: float) -> float:
        density = scipy.stats.nct.pdf(t, n - 1, effect * math.sqrt(n)) if effect else scipy.stats.t.pdf(t, n - 1)
        return float(density * scipy.stats.norm.pdf(effect, scale=EFFECT_SD))

    marginal = scipy.integrate.quad(likelihood, -4 * EFFECT_SD, 4 * EFFECT_SD, limit=200)[0]
    assert always_valid_p(t, n) == pytest.approx(min(1, scipy.stats.t.pdf(t, n - 1) / marginal), rel=2e-3)


@given(n=ns, alpha=alphas)
def test_the_critical_t_has_this_p_value_or_no_t_has(n: int, alpha: float) -> None:
    t = always_valid_t(alpha, n)
    if math.isinf(t):
        assert always_valid_p(math.inf, n) >= alpha
    else:
        assert always_valid_p(t, n) == pytest.approx(alpha, rel=1e-9)


@given(n=ns, t=st.floats(0, 50))
def test_the_p_value_is_never_below_that_of_student(n: int, t: float) -> None:
    assert always_valid_p(t, n) >= 2 * scipy.stats.t.sf(t, n - 1) * (1 - 1e-9)


def test_an_open_ended_interval_holds_the_means_that_its_test_does_not_reject() -> None:
    summary = summarise([0.3, 0.5, 0.4, 0.7, 0.2, 0.45])
    ends = interval(summary, 0.05, open_ended=True)
    assert ends is not None
    assert [two_sided_p(summary, end, open_ended=True) for end in ends] == pytest.approx([0.05, 0.05])
    assert interval(summarise([0.3, 0.5, 0.4]), 0.05, open_ended=True) is None


def test_as_many_seeds_as_needed_decide_and_one_fewer_do_not() -> None:
    summary = summarise([0.3, -0.5, 0.4, 0.7, -0.2, 0.45])
    needs = seeds_needed(summary, alpha=0.05, open_ended=True)
    assert needs is not None
    assert summary.sd is not None
    halves = [always_valid_t(0.05, n) * summary.sd / math.sqrt(n) for n in (needs - 1, needs)]
    assert halves[0] > summary.mean > halves[1]
    assert needs > (seeds_needed(summary, alpha=0.05) or 0)


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_few_of_many_equal_variants_are_ever_rejected_at_any_number_of_seeds(alpha: float) -> None:
    x = np.random.default_rng(0).normal(size=(4000, 120))
    n = np.arange(1, 121)
    mean = x.cumsum(1) / n
    variance = ((x**2).cumsum(1) - n * mean**2)[:, 1:] / (n - 1)[1:]
    t = abs(mean[:, 1:]) / np.sqrt(variance / n[1:])
    rejected = t > [always_valid_t(alpha, count) for count in n[1:].tolist()]
    assert alpha / 3 < rejected.any(1).mean() <= alpha
