"""Outliers: false alarms under normal noise, exact sign-flip tests, and what verdicts make of them."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.analysis.outliers import CUTOFFS, MAX_PAIRS, MIN_PAIRS, cutoffs, outliers, sign_flip_interval, sign_flip_p
from paribus.analysis.verdicts import PairedDifferences, Verdict, decide

numbers = st.lists(st.integers(-50, 50).map(lambda value: value / 4), min_size=2, max_size=8)
FAILED = (0.1, -0.2, 0.05, 9.0, 0.0, -0.1, 0.15, -0.05)  # of eight seeds, the fourth failed


def verdict_of(*differences: float, margin: float | None = None) -> Verdict:
    paired = PairedDifferences(
        differences=differences, seeds=tuple(range(10, 10 + len(differences))), diverged=0, planned=len(differences)
    )
    return decide({"it": paired}, better="lower", margin=margin)["it"]


@pytest.mark.parametrize("n", range(3, 13))
def test_normal_noise_has_an_outlier_in_about_one_of_sixty_samples(n: int) -> None:
    draw = random.Random(n)
    alarms = sum(bool(outliers([draw.gauss(3, 2) for _ in range(n)])) for _ in range(4000)) / 4000
    assert alarms == 0 if n < MIN_PAIRS else 0.005 <= alarms <= 0.025


@given(values=numbers, shift=st.integers(-4, 4), power=st.integers(-8, 8))
def test_unit_sign_and_offset_do_not_matter(values: list[float], shift: int, power: int) -> None:
    assert outliers([value * 2.0**power for value in values]) == outliers(values)
    assert outliers([-value for value in values]) == outliers(values)
    if len(set(values)) == len(values):  # equal differences show a step, and so does their distance from 0
        assert outliers([value + shift for value in values]) == outliers(values)


def test_a_failed_seed_is_named_and_equal_differences_have_none() -> None:
    assert outliers(FAILED) == (3,)
    assert outliers([0.5] * 8) == ()
    assert outliers([0.5] * 7 + [0.5 + 1e-12]) == ()
    assert outliers((*FAILED, *FAILED[:3], -9.0)) == (3, 11)  # of two, neither hides the other
    assert outliers([float(value) for value in range(MAX_PAIRS + 1)]) == ()


@pytest.mark.parametrize("n", [4, 5, 8])
@pytest.mark.parametrize("examples", [50, 500])
def test_an_accuracy_has_no_more_false_alarms_than_normal_noise(n: int, examples: int) -> None:
    draw = random.Random(n)
    changed = [round(draw.gauss(0, (examples / 20) ** 0.5)) / examples for _ in range(2000 * n)]
    alarms = sum(bool(outliers([value + 0.02 for value in changed[at::2000]])) for at in range(2000))
    assert alarms / 2000 <= 0.025


def test_equal_differences_hide_no_failed_seed() -> None:
    assert outliers([0.53 - 0.51, 0.52 - 0.50, 0.55 - 0.52, 0.52 - 0.50]) == ()
    assert outliers([0.53 - 0.51, 0.52 - 0.50, 0.55 - 0.52, 0.52 - 0.50, -0.5]) == (4,)
    assert outliers([0.02, 0.02, 0.02, -0.5]) == (3,)


def test_cutoffs_between_two_simulated_numbers_lie_between_theirs() -> None:
    for few, many in itertools.pairwise(n for n in CUTOFFS if n >= 12):
        for ends in zip(CUTOFFS[few], cutoffs((few + many) // 2), CUTOFFS[many], strict=True):
            assert sorted(ends, reverse=True) == list(ends)
    with pytest.raises(ValueError, match="between 4 and 100, but is 3"):
        cutoffs(3)


@given(values=numbers)
def test_the_p_value_counts_all_sign_flips(values: list[float]) -> None:
    total = sum(values)
    sums = [
        sum(sign * value for sign, value in zip(signs, values, strict=True))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    tail = min(sum(flipped >= total for flipped in sums), sum(flipped <= total for flipped in sums)) / len(sums)
    assert sign_flip_p(values) == pytest.approx(min(1.0, 2 * tail))


@given(values=numbers, alpha=st.sampled_from([0.01, 0.05, 0.2, 0.5]), mean=st.integers(-12, 12))
def test_the_interval_has_the_means_that_the_test_does_not_reject(
    values: list[float], alpha: float, mean: float
) -> None:
    bounds = sign_flip_interval(values, alpha)
    assert (sign_flip_p(values, mean) > alpha) == (bounds is None or bounds[0] <= mean <= bounds[1])


def test_an_outlier_widens_the_verdict_and_is_named() -> None:
    few = verdict_of(-1.0, -1.02, -0.98, -1.01, -5.0)
    assert (few.kind, few.low, few.needs, few.outliers) == ("inconclusive", None, None, (14,))
    assert few.text == "inconclusive (outlier: seed 14)"
    many = verdict_of(*(value - 20 for value in FAILED))
    assert (many.kind, many.text) == ("better", "better (outlier: seed 13)")
    assert many.low is not None
    assert many.high is not None
    assert many.low < -20 < many.high < 0
    assert verdict_of(*FAILED, margin=5.0).text == "equivalent (outlier: seed 13)"
    assert verdict_of(*FAILED, margin=1.0).kind == "inconclusive"


@pytest.mark.few(1)
@pytest.mark.parametrize("n", [5, 8, 12])
def test_fewer_verdicts_by_less_than_two_percent_under_normal_noise(n: int) -> None:
    draw = random.Random(n)
    samples = [[draw.gauss(-1.5, 1) for _ in range(n)] for _ in range(1500)]
    alone = [PairedDifferences(differences=tuple(sample), diverged=0, planned=n) for sample in samples]
    with_check = sum(decide({"it": it}, better="lower", margin=None)["it"].kind == "better" for it in alone)
    flagged = sum(bool(it.outliers) for it in alone)
    assert flagged / 1500 < 0.025
    assert with_check / 1500 > {5: 0.7, 8: 0.93, 12: 0.96}[n]
