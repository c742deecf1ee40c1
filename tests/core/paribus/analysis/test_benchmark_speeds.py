"""Speed verdicts from timed rounds: coverage of the intervals and false positives on the same code."""

import math

import numpy as np
import pytest
from scipy import stats

from paribus.analysis.benchmark_speeds import BATCHES, TimedRounds, batch_logarithms, judge_speeds

N = 160


def rounds(rng: np.random.Generator, *, scale: float = 1.0, along: float = 0.0, n: int = N) -> list[float]:
    """Seconds of rounds on a noisy machine, with autocorrelation `along`."""
    noise, state = [], 0.0
    for shock in rng.normal(0, 0.05, n):
        state = along * state + math.sqrt(1 - along**2) * shock
        noise.append(state)
    return [float(scale * 0.01 * math.exp(logarithm)) for logarithm in noise]


def one(baseline: list[float], variant: list[float]) -> str:
    return judge_speeds({"x": TimedRounds(before=[baseline], after=[variant])})["x"].kind


def test_the_interval_of_several_runs_is_that_of_welch() -> None:
    rng = np.random.default_rng(0)
    runs = [[rounds(rng, scale=float(np.exp(rng.normal(0, 0.1)))) for _ in range(count)] for count in (4, 5)]
    result = judge_speeds({"x": TimedRounds(before=runs[0], after=runs[1])})["x"]
    baseline, variant = ([math.log(np.median(run)) for run in side] for side in runs)
    expected = stats.ttest_ind(variant, baseline, equal_var=False)
    low, high = expected.confidence_interval(0.95)
    assert result.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert [result.low, result.high] == pytest.approx([math.exp(low), math.exp(high)])
    assert result.ratio == pytest.approx(math.exp(np.mean(variant) - np.mean(baseline)))


@pytest.mark.parametrize(("runs", "times"), [(1, 2.0), (2, 1.0)])
def test_without_variation_between_runs_the_variance_of_batches_is_used(runs: int, times: float) -> None:
    rng = np.random.default_rng(0)
    sides = [[rounds(rng, scale=scale) for _ in range(runs)] for scale in (1.1, 1.0)]
    result = judge_speeds({"x": TimedRounds(before=sides[1], after=sides[0])})["x"]
    logs = [np.log([np.median(part) for part in np.array_split(np.concatenate(side), BATCHES)]) for side in sides]
    variances = [np.var(side, ddof=1) * (1 / BATCHES + times) for side in logs]
    freedom = sum(variances) ** 2 / sum(variance**2 / (BATCHES - 1) for variance in variances)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(sum(variances))
    mean = np.mean(logs[0]) - np.mean(logs[1])
    nearest = min(mean, math.log(np.min(sides[0]) / np.min(sides[1])))
    assert (result.low, result.high) == pytest.approx((math.exp(nearest - half), math.exp(mean + half)))


def test_a_difference_missing_in_the_fastest_rounds_is_not_claimed() -> None:
    """Others on the machine delay most rounds of a run, and rarely each of them: what the code takes they all take."""
    rng = np.random.default_rng(9)
    baseline, variant = rounds(rng), rounds(rng)
    delayed = [seconds * (1 if index % 8 == 0 else 1.5) for index, seconds in enumerate(variant)]
    assert stats.ttest_ind(batch_logarithms(baseline), batch_logarithms(delayed)).pvalue < 1e-6
    result = judge_speeds({"x": TimedRounds(before=[baseline], after=[delayed])})["x"]
    assert result.low is not None
    assert result.low < 1
    assert result.kind == "inconclusive"
    assert one(baseline, [1.5 * seconds for seconds in variant]) == "slower"


def test_longer_rounds_are_slower_and_shorter_ones_faster() -> None:
    rng = np.random.default_rng(1)
    fast, slow = rounds(rng), rounds(rng, scale=1.2)
    assert (one(fast, slow), one(slow, fast)) == ("slower", "faster")


@pytest.mark.thorough
@pytest.mark.parametrize(("along", "naive_limit"), [(0.0, 0.97), (0.5, 0.85)])
def test_intervals_cover_the_truth_although_rounds_are_correlated(along: float, naive_limit: float) -> None:
    rng = np.random.default_rng(2)
    covered = naively_covered = 0
    for _ in range(150):
        baseline, variant = rounds(rng, along=along), rounds(rng, scale=1.05, along=along)
        result = judge_speeds({"x": TimedRounds(before=[baseline], after=[variant])})["x"]
        assert result.low is not None
        assert result.high is not None
        covered += result.low <= 1.05 <= result.high
        naively_covered += stats.ttest_ind(np.log(variant) - math.log(1.05), np.log(baseline)).pvalue > 0.05
    assert covered >= 0.92 * 150
    assert naively_covered <= naive_limit * 150  # each round by itself: what batches are for


def test_single_rounds_give_false_positives_and_batches_do_not() -> None:
    rng = np.random.default_rng(7)
    claimed = naive_claims = 0
    for _ in range(80):
        baseline, variant = rounds(rng, along=0.9), rounds(rng, along=0.9)
        claimed += one(baseline, variant) != "inconclusive"
        naive_claims += stats.ttest_ind(np.log(variant), np.log(baseline)).pvalue < 0.05
    assert claimed <= 0.03 * 80
    assert naive_claims > 0.4 * 80


def test_drift_within_a_run_is_not_claimed_as_a_difference() -> None:
    rng = np.random.default_rng(3)
    drifting = [seconds * (1 + 0.3 * index / N) for index, seconds in enumerate(rounds(rng))]
    result = judge_speeds({"x": TimedRounds(before=[rounds(rng)], after=[drifting])})["x"]
    assert result.low is not None
    assert result.low < 1
    assert result.noise is not None
    assert result.noise > 1.1
    assert result.kind == "inconclusive"


def test_variation_between_runs_is_not_claimed_as_a_difference() -> None:
    """Each run is fast or slow as a whole, by as much as its own parts differ: means of rounds would prove anything."""
    rng = np.random.default_rng(8)
    claimed = claimed_by_batches = detected = 0
    for _ in range(60):
        baseline, variant = [rounds(rng, scale=float(np.exp(rng.normal(0, 0.02)))) for _ in "ab"]
        claimed += one(baseline, variant) != "inconclusive"
        claimed_by_batches += stats.ttest_ind(batch_logarithms(baseline), batch_logarithms(variant)).pvalue < 0.05
        detected += one(baseline, [1.3 * seconds for seconds in variant]) == "slower"
    assert claimed <= 0.02 * 60
    assert claimed_by_batches > 0.4 * 60
    assert detected >= 0.95 * 60


def test_noise_in_one_benchmark_does_not_hide_another() -> None:
    rng = np.random.default_rng(4)
    burst = [seconds * (1.5 if index > N / 2 else 1) for index, seconds in enumerate(rounds(rng))]
    calm = TimedRounds(before=[rounds(rng)], after=[rounds(rng, scale=1.3)])
    results = judge_speeds({"calm": calm, "burst": TimedRounds(before=[rounds(rng)], after=[burst])})
    assert (results["calm"].kind, results["burst"].kind) == ("slower", "inconclusive")


def test_with_three_runs_a_side_each_run_counts_once() -> None:
    """Each run has a speed of its own, by far more than its rounds differ: rounds would prove anything."""
    rng = np.random.default_rng(5)
    claimed = claimed_by_rounds = 0
    for _ in range(60):
        sides = [[rounds(rng, scale=float(np.exp(rng.normal(0, 0.1)))) for _ in range(3)] for _ in range(2)]
        claimed += judge_speeds({"x": TimedRounds(before=sides[0], after=sides[1])})["x"].kind != "inconclusive"
        claimed_by_rounds += stats.ttest_ind(*(np.log(np.concatenate(side)) for side in sides)).pvalue < 0.05
    assert claimed <= 0.06 * 60
    assert claimed_by_rounds > 0.5 * 60


def test_holm_widens_every_interval() -> None:
    rng = np.random.default_rng(6)
    same = rounds(rng)
    timed = {str(index): TimedRounds(before=[same], after=[same]) for index in range(10)}
    assert [result.level for result in judge_speeds(timed).values()] == pytest.approx([1 - 0.05 / 10] * 10)


@pytest.mark.parametrize(
    ("baseline", "words"),
    [([], "no rounds were saved"), ([1.0] * 3, "too few rounds: n = 3"), ([0.0] * 40, "the clock is too coarse")],
)
def test_without_enough_rounds_there_is_no_interval(baseline: list[float], words: str) -> None:
    result = judge_speeds({"x": TimedRounds(before=[baseline], after=[[1.0] * 40])})["x"]
    assert (result.kind, result.low, result.noise) == ("inconclusive", None, None)
    assert words in result.reason


def test_rounds_without_variance_are_compared_by_permutations() -> None:
    result = judge_speeds({"x": TimedRounds(before=[[1.0] * 40], after=[[2.0] * 40])})["x"]
    assert (result.kind, result.ratio, result.low, result.high) == ("slower", 2.0, 2.0, 2.0)
    assert one([1.0] * 40, [1.0] * 40) == "inconclusive"


def test_every_round_is_in_one_batch() -> None:
    logarithms = batch_logarithms([float(index) for index in range(1, 38)])
    expected = [
        math.log(np.median(part)) for part in np.split(np.arange(1, 38), [index * 37 // 16 for index in range(1, 16)])
    ]
    assert logarithms == pytest.approx(expected)
