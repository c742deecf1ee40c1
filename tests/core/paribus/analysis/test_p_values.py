"""Student-t statistics, compared with scipy, closed forms and brute force."""

import itertools
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence

import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paribus.analysis.p_values import (
    f_cdf,
    f_quantile,
    holm,
    interval,
    seeds_needed,
    summarise,
    t_cdf,
    t_quantile,
    two_sided_p,
    variance_reduction,
)

ALPHAS = (0.2, 0.05, 0.05 / 3, 0.001)

dfs = st.one_of(st.integers(1, 30).map(float), st.floats(1, 1e4))
alphas = st.sampled_from(ALPHAS)
values = st.floats(-100, 100).map(lambda value: round(value, 6))
samples = st.lists(values, min_size=2, max_size=9).filter(lambda sample: max(sample) - min(sample) > 1e-3)
p_values = st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.01, 0.0125, 0.02, 0.05, 1.0])), max_size=6)


def with_moments(n: int, mean: float, sd: float) -> list[float]:
    """n numbers of exactly this mean and standard deviation."""
    shape = [float(index) for index in range(n)]
    middle, spread = statistics.mean(shape), statistics.stdev(shape)
    return [mean + sd * (value - middle) / spread for value in shape]


# ------------------------------------------------------------------------------------------------ the t distribution
@pytest.mark.thorough
@given(t=st.floats(-60, -1e-3) | st.floats(1e-3, 60), df=dfs)  # nearer to the median scipy itself says 0.5
def test_the_cdf_is_that_of_scipy(t: float, df: float) -> None:
    expected = scipy.stats.t.cdf(t, df)
    assume(expected >= 1e-6)
    assert t_cdf(t, df) == pytest.approx(expected, rel=1e-10, abs=0)


@given(p=st.floats(1e-6, 0.45), df=dfs)  # there, too, it has fewer than ten digits
def test_the_quantile_is_that_of_scipy(p: float, df: float) -> None:
    assert t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-10, abs=0)


@given(x=st.floats(1e-3, 1e3), df1=dfs, df2=dfs)
def test_the_cdf_of_f_is_that_of_scipy(x: float, df1: float, df2: float) -> None:
    assert f_cdf(x, df1, df2) == pytest.approx(scipy.stats.f.cdf(x, df1, df2), rel=1e-8, abs=1e-10)


@given(p=st.floats(0.001, 0.999), df1=dfs, df2=dfs)
def test_the_quantile_of_f_is_that_of_scipy(p: float, df1: float, df2: float) -> None:
    assert f_quantile(p, df1, df2) == pytest.approx(scipy.stats.f.ppf(p, df1, df2), rel=1e-7)


@given(p=st.floats(1e-12, 1 - 1e-12), df=st.floats(0.3, 1e6))
def test_the_quantile_inverts_the_cdf(p: float, df: float) -> None:
    # Of a million degrees of freedom, the logarithms of gamma functions leave a digit less: 2e-10 was seen.
    assert t_cdf(t_quantile(p, df), df) == pytest.approx(p, rel=1e-9, abs=0)


@given(t=st.floats(-5, 5) | st.floats(-1e6, 1e6))
def test_the_cdf_has_the_closed_forms_of_one_two_and_many_degrees_of_freedom(t: float) -> None:
    size = abs(t)
    cauchy = math.atan2(1, size) / math.pi
    two = 1 / (2 + size * size + size * math.sqrt(2 + size * size))
    assert t_cdf(-size, 1) == pytest.approx(cauchy, rel=1e-12)
    assert t_cdf(-size, 2) == pytest.approx(two, rel=1e-12)
    if size < 5:
        assert t_cdf(t, 1e8) == pytest.approx(math.erfc(-t / math.sqrt(2)) / 2, rel=1e-5)


@given(t=st.floats(0, 1e3), step=st.floats(0, 10), df=st.floats(0.1, 1e5))
def test_the_cdf_is_symmetric_and_never_falls(t: float, step: float, df: float) -> None:
    assert t_cdf(t, df) + t_cdf(-t, df) == pytest.approx(1, abs=1e-15)
    assert t_cdf(t + step, df) >= t_cdf(t, df) * (1 - 1e-13)


@given(p=st.integers(1, 2**19).map(lambda count: count / 2**20), df=dfs)  # so that 1 - p is exact
def test_the_quantile_is_antisymmetric_about_the_median(p: float, df: float) -> None:
    assert t_quantile(1 - p, df) == -t_quantile(p, df)


def test_the_ends_of_the_distribution_neither_overflow_nor_hang() -> None:
    assert t_cdf(-math.inf, 3) == 0
    assert t_cdf(math.inf, 3) == 1
    assert t_cdf(0, 3) == t_cdf(1e-320, 3) == 0.5
    assert t_quantile(0.5, 3) == 0
    assert t_cdf(-1e300, 0.01) == pytest.approx(0, abs=1e-2)
    assert t_quantile(1e-300, 4) == pytest.approx(-((3 / 1e-300) ** 0.25), rel=1e-9)  # the tail is 3 / t^4
    assert t_quantile(1e-6, 0.01) < -1e300  # the true one is beyond what a float holds


# ---------------------------------------------------------------------------------------------- one set of differences
@given(sample=samples)
@settings(max_examples=50)
def test_a_summary_has_the_moments_of_the_standard_library(sample: list[float]) -> None:
    summary = summarise(sample)
    assert summary.n == len(sample)
    assert summary.mean == pytest.approx(statistics.fmean(sample), rel=1e-12, abs=1e-12)
    assert summary.sd == pytest.approx(statistics.stdev(sample), rel=1e-9)
    assert summary.standard_error == pytest.approx(scipy.stats.sem(sample), rel=1e-9)


def test_large_and_small_differences_neither_overflow_nor_vanish() -> None:
    for scale in (1e199, 1e-300):
        sd = summarise([1 * scale, 2 * scale, 4 * scale]).sd
        assert sd is not None
        assert sd / scale == pytest.approx(statistics.stdev([1, 2, 4]))


@given(pairs=st.lists(st.tuples(values, values), min_size=2, max_size=9))
@settings(max_examples=50)
def test_the_p_value_is_that_of_the_paired_t_test_of_scipy(pairs: list[tuple[float, float]]) -> None:
    differences = [variant - baseline for baseline, variant in pairs]
    assume(max(differences) - min(differences) > 1e-3)
    baseline, variant = zip(*pairs, strict=True)
    expected = scipy.stats.ttest_rel(variant, baseline).pvalue
    assert two_sided_p(summarise(differences)) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(sample=samples, alpha=alphas)
@settings(max_examples=50)
def test_the_interval_is_that_of_scipy(sample: list[float], alpha: float) -> None:
    mean, error = statistics.fmean(sample), scipy.stats.sem(sample)
    expected = scipy.stats.t.interval(1 - alpha, len(sample) - 1, loc=mean, scale=error)
    assert interval(summarise(sample), alpha) == pytest.approx(expected, rel=1e-8, abs=1e-8)


@given(sample=samples, alpha=alphas, mean=values)
def test_the_interval_holds_exactly_the_means_that_are_not_rejected(
    sample: list[float], alpha: float, mean: float
) -> None:
    summary = summarise(sample)
    bounds = interval(summary, alpha)
    assert bounds is not None
    assert (bounds[0] <= mean <= bounds[1]) == (two_sided_p(summary, mean) > alpha)


@pytest.mark.thorough
@given(sample=samples, small=st.floats(1e-6, 0.5), smaller=st.floats(1e-6, 0.5))
@settings(max_examples=50)
def test_an_interval_that_errs_less_is_wider(sample: list[float], small: float, smaller: float) -> None:
    assume(smaller < small)
    narrow, wide = interval(summarise(sample), small), interval(summarise(sample), smaller)
    assert narrow is not None
    assert wide is not None
    rounding = 1e-9 * max(map(abs, (*narrow, *wide)))
    assert wide[0] - rounding <= narrow[0] <= narrow[1] <= wide[1] + rounding


def tost_p(sample: list[float], margin: float) -> float:
    """p-value of two one-sided tests (Schuirmann 1987): that the true mean lies outside of ±margin."""
    above = scipy.stats.ttest_1samp(sample, -margin, alternative="greater").pvalue
    below = scipy.stats.ttest_1samp(sample, margin, alternative="less").pvalue
    return float(max(above, below))


@pytest.mark.thorough
@given(sample=samples, margin=st.floats(0.01, 100), alpha=alphas)
def test_equivalence_at_half_of_alpha_is_an_interval_inside_the_margin(
    sample: list[float], margin: float, alpha: float
) -> None:
    bounds = interval(summarise(sample), alpha)
    assert bounds is not None
    inside = -margin < bounds[0] and bounds[1] < margin
    p = tost_p(sample, margin)
    assert inside == (p <= alpha / 2) or p == pytest.approx(alpha / 2, rel=1e-6)


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_an_interval_of_95_percent_covers_the_truth_at_least_93_times_in_100(seeds: int) -> None:
    draw, studies, covered = random.Random(seeds), 4000, 0
    for _ in range(studies):
        bounds = interval(summarise([draw.gauss(0.3, 2) for _ in range(seeds)]), 0.05)
        assert bounds is not None
        covered += bounds[0] <= 0.3 <= bounds[1]
    assert covered / studies >= 0.93


# -------------------------------------------------------------------------------------------------- where t has no say
def test_one_pair_has_no_spread_no_interval_and_proves_nothing() -> None:
    summary = summarise([-7.0])
    assert (summary.n, summary.mean, summary.sd, summary.standard_error) == (1, -7.0, None, None)
    assert interval(summary, 0.05) is None
    assert two_sided_p(summary) == 1
    assert seeds_needed(summary, alpha=0.05) == 2


@pytest.mark.parametrize("n", range(2, 12))
def test_equal_differences_prove_as_much_as_a_sign_test(n: int) -> None:
    summary = summarise([0.5] * n)
    assert summary.sd == 0
    assert two_sided_p(summary) == pytest.approx(scipy.stats.binomtest(n, n).pvalue)
    assert interval(summary, 0.05) == ((0.5, 0.5) if n >= 6 else None)
    assert seeds_needed(summary, alpha=0.05) == 6


def test_differences_that_are_equal_up_to_rounding_are_equal() -> None:
    differences = [0.9 - 0.6, 0.5 - 0.2, 0.8 - 0.5]
    assert len(set(differences)) > 1
    assert summarise(differences).sd == 0
    assert summarise([0.3, 0.3, 0.3001]).sd != 0


def test_zero_differences_are_not_significant() -> None:
    summary = summarise([0.0] * 50)
    assert two_sided_p(summary) == 1
    assert interval(summary, 0.05) == (0, 0)
    assert seeds_needed(summary, alpha=0.05) is None
    assert seeds_needed(summary, alpha=0.05, margin=0.1) == 6


# -------------------------------------------------------------------------------------------------------- seeds needed
@given(sample=samples, alpha=alphas, margin=st.none() | st.floats(0.01, 100))
@settings(max_examples=50)
def test_the_seeds_needed_are_the_first_that_settle_it(sample: list[float], alpha: float, margin: float | None) -> None:
    summary = summarise(sample)
    assert summary.sd is not None

    def settled(n: int) -> bool:
        half = scipy.stats.t.ppf(1 - alpha / 2, n - 1) * summary.sd / math.sqrt(n)
        return bool(half < abs(summary.mean) or (margin is not None and abs(summary.mean) + half < margin))

    assert seeds_needed(summary, alpha=alpha, margin=margin, limit=40) == next(filter(settled, range(2, 41)), None)


@given(mean=st.floats(0.2, 5), sd=st.floats(0.1, 2), alpha=alphas)
@settings(max_examples=50)
def test_that_many_seeds_of_the_same_mean_and_spread_are_significant(mean: float, sd: float, alpha: float) -> None:
    needed = seeds_needed(summarise(with_moments(5, mean, sd)), alpha=alpha)
    assert needed is not None
    assert two_sided_p(summarise(with_moments(needed, mean, sd))) <= alpha
    if needed > 2:
        assert two_sided_p(summarise(with_moments(needed - 1, mean, sd))) > alpha


def test_seeds_beyond_the_cap_are_not_promised() -> None:
    assert seeds_needed(summarise(with_moments(5, 1e-4, 1)), alpha=0.05) is None
    assert seeds_needed(summarise(with_moments(5, 1, 1)), alpha=0.05, limit=3) is None


# ---------------------------------------------------------------------------------------------------------- the family
def closed_test(p_values: Sequence[float], index: int) -> float:
    """Holm's adjusted p-value by its definition: no Bonferroni test of any subfamily may keep the hypothesis."""
    other_p_values = [p for place, p in enumerate(p_values) if place != index]
    subfamilies = (
        [p_values[index], *subset]
        for size in range(len(p_values))
        for subset in itertools.combinations(other_p_values, size)
    )
    return max(min(1.0, len(subfamily) * min(subfamily)) for subfamily in subfamilies)


@given(ps=p_values, alpha=alphas)
@settings(max_examples=50)
def test_holm_is_the_closed_test_of_every_subfamily(ps: list[float], alpha: float) -> None:
    steps = holm(ps, alpha)
    assert [step.adjusted for step in steps] == pytest.approx([closed_test(ps, index) for index in range(len(ps))])
    assert all(step.rejected == (step.adjusted <= alpha) for step in steps if not math.isclose(step.adjusted, alpha))


@given(ps=p_values, alpha=alphas)
def test_each_decision_has_the_level_of_its_step(ps: list[float], alpha: float) -> None:
    steps = holm(ps, alpha)
    rejected = sorted((p, step.alpha) for p, step in zip(ps, steps, strict=True) if step.rejected)
    for passed, (p, level) in enumerate(rejected):
        assert p <= level
        rank = [rejected_p for rejected_p, _ in rejected].index(p)
        assert rank <= passed
        assert level == alpha / (len(ps) - rank)
    for p, step in zip(ps, steps, strict=True):
        if not step.rejected:
            assert step.alpha == alpha / (len(ps) - len(rejected))
            assert p > step.alpha


@given(ps=p_values, alpha=alphas, draw=st.randoms(use_true_random=False))
def test_the_order_of_the_family_does_not_matter(ps: list[float], alpha: float, draw: random.Random) -> None:
    order = list(range(len(ps)))
    draw.shuffle(order)
    steps = holm(ps, alpha)
    assert holm([ps[index] for index in order], alpha) == tuple(steps[index] for index in order)


def test_an_empty_family_has_no_steps() -> None:
    assert holm([], 0.05) == ()


# ------------------------------------------------------------------------------------------------ the worth of pairing
@given(pairs=st.lists(st.tuples(values, values), min_size=2, max_size=9))
@settings(max_examples=50)
def test_the_variance_reduction_is_the_ratio_of_the_variances(pairs: list[tuple[float, float]]) -> None:
    differences = [variant - baseline for baseline, variant in pairs]
    assume(max(differences) - min(differences) > 1e-3)
    baseline, variant = zip(*pairs, strict=True)
    expected = (statistics.variance(baseline) + statistics.variance(variant)) / statistics.variance(differences)
    assert variance_reduction(baseline, variant) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_pairing_gains_where_seeds_are_shared_and_nothing_where_they_are_not() -> None:
    draw = random.Random(0)
    baseline = [draw.gauss(3, 1) for _ in range(2000)]
    shared = [value + draw.gauss(0.2, 0.1) for value in baseline]
    apart = [draw.gauss(3.2, 1) for _ in range(2000)]
    assert variance_reduction(baseline, shared) == pytest.approx(201, rel=0.1)  # (1 + 1.01) / 0.01
    assert variance_reduction(baseline, apart) == pytest.approx(1, rel=0.1)


def test_a_variance_reduction_is_undefined_without_two_pairs_that_differ_differently() -> None:
    assert variance_reduction([], []) is None
    assert variance_reduction([1.0], [2.0]) is None
    assert variance_reduction([1.0, 2.0, 4.0], [1.5, 2.5, 4.5]) is None


# ---------------------------------------------------------------------------------------------------- what is refused
def test_a_distribution_without_degrees_of_freedom_is_refused() -> None:
    for df in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="`df` must be positive and finite, but is"):
            t_cdf(1, df)
        with pytest.raises(ValueError, match="`df` must be positive and finite, but is"):
            t_quantile(0.1, df)


@pytest.mark.parametrize("rate", [0, 1, -0.1, math.nan])
def test_a_rate_outside_0_and_1_is_refused(rate: float) -> None:
    summary = summarise([1.0, 2.0])
    with pytest.raises(ValueError, match="`p` must lie between 0 and 1, but is"):
        t_quantile(rate, 3)
    with pytest.raises(ValueError, match="`alpha` must lie between 0 and 1, but is"):
        interval(summary, rate)
    with pytest.raises(ValueError, match="`alpha` must lie between 0 and 1, but is"):
        seeds_needed(summary, alpha=rate)
    with pytest.raises(ValueError, match="`alpha` must lie between 0 and 1, but is"):
        holm([0.5], rate)


@pytest.mark.parametrize("margin", [0, -1, math.nan, math.inf])
def test_a_margin_that_is_not_positive_is_refused(margin: float) -> None:
    summary = summarise([1.0, 2.0])
    with pytest.raises(ValueError, match="`margin` must be positive and finite, but is"):
        seeds_needed(summary, alpha=0.05, margin=margin)


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_a_p_value_outside_0_and_1_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=r"`p_values` must lie between 0 and 1, but are 0\.5, "):
        holm([0.5, p], 0.05)


def test_no_differences_cannot_be_summarised() -> None:
    with pytest.raises(ValueError, match="`differences` must hold at least one number, but is empty"):
        summarise([])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e201])
def test_a_difference_that_is_not_a_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"`differences` must lie within ±1e\+200, but hold .*; such a trial diverged"):
        summarise([1.0, value])


def test_values_that_are_not_paired_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`variant` must have as many values as `baseline` \(2\), but has 1"):
        variance_reduction([1.0, 2.0], [1.0])


def test_the_statistics_import_nothing_heavy() -> None:
    code = "import sys, paribus.analysis.verdicts; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(imported) & {"torch", "scipy", "numpy", "lightning", "statistics"} == set()
