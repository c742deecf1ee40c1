"""What is claimed of rounds: the truth as often as promised, and nothing that the same code would show."""

import math

import numpy as np
import pytest
from scipy import stats

from paribus.analysis.benchmark_speeds import BATCHES, TimedRounds, batch_logarithms, judge_speeds

N = 160


def rounds(luck: np.random.Generator, *, scale: float = 1.0, along: float = 0.0, n: int = N) -> list[float]:
    """A noisy machine: rounds that follow each other are alike where `along` is near 1."""
    noise, state = [], 0.0
    for shock in luck.normal(0, 0.05, n):
        state = along * state + math.sqrt(1 - along**2) * shock
        noise.append(state)
    return [float(scale * 0.01 * math.exp(each)) for each in noise]


def one(before: list[float], after: list[float]) -> str:
    return judge_speeds({"x": TimedRounds(before=[before], after=[after])})["x"].kind


def test_the_interval_of_several_runs_is_that_of_welch() -> None:
    luck = np.random.default_rng(0)
    runs = [[rounds(luck, scale=float(np.exp(luck.normal(0, 0.1)))) for _ in range(count)] for count in (4, 5)]
    found = judge_speeds({"x": TimedRounds(before=runs[0], after=runs[1])})["x"]
    before, after = ([math.log(np.median(run)) for run in side] for side in runs)
    expected = stats.ttest_ind(after, before, equal_var=False)
    low, high = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert [found.low, found.high] == pytest.approx([math.exp(low), math.exp(high)])
    assert found.ratio == pytest.approx(math.exp(np.mean(after) - np.mean(before)))


@pytest.mark.parametrize(("runs", "times"), [(1, 2.0), (2, 1.0)])
def test_where_runs_did_not_show_how_far_they_stray_batches_stand_for_them(runs: int, times: float) -> None:
    luck = np.random.default_rng(0)
    sides = [[rounds(luck, scale=scale) for _ in range(runs)] for scale in (1.1, 1.0)]
    found = judge_speeds({"x": TimedRounds(before=sides[1], after=sides[0])})["x"]
    logs = [np.log([np.median(part) for part in np.array_split(np.concatenate(side), BATCHES)]) for side in sides]
    variances = [np.var(side, ddof=1) * (1 / BATCHES + times) for side in logs]
    freedom = sum(variances) ** 2 / sum(each**2 / (BATCHES - 1) for each in variances)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(sum(variances))
    mean = np.mean(logs[0]) - np.mean(logs[1])
    nearest = min(mean, math.log(np.min(sides[0]) / np.min(sides[1])))
    assert (found.low, found.high) == pytest.approx((math.exp(nearest - half), math.exp(mean + half)))


def test_what_the_fastest_rounds_do_not_show_is_not_claimed() -> None:
    """Others on the machine delay most rounds of a run, and rarely each of them: what the code takes they all take."""
    luck = np.random.default_rng(9)
    before, after = rounds(luck), rounds(luck)
    delayed = [each * (1 if at % 8 == 0 else 1.5) for at, each in enumerate(after)]
    assert stats.ttest_ind(batch_logarithms(before), batch_logarithms(delayed)).pvalue < 1e-6
    found = judge_speeds({"x": TimedRounds(before=[before], after=[delayed])})["x"]
    assert found.low is not None
    assert found.low < 1
    assert found.kind == "inconclusive"
    assert one(before, [1.5 * each for each in after]) == "slower"


def test_what_takes_longer_is_slower_and_the_other_way_round_faster() -> None:
    luck = np.random.default_rng(1)
    before, after = rounds(luck), rounds(luck, scale=1.2)
    assert (one(before, after), one(after, before)) == ("slower", "faster")


@pytest.mark.parametrize(("along", "naively"), [(0.0, 0.97), (0.5, 0.85)])
def test_the_interval_holds_the_truth_as_often_as_it_says_although_rounds_are_alike(
    along: float, naively: float
) -> None:
    luck = np.random.default_rng(2)
    held = naive = 0
    for _ in range(150):
        before, after = rounds(luck, along=along), rounds(luck, scale=1.05, along=along)
        found = judge_speeds({"x": TimedRounds(before=[before], after=[after])})["x"]
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1.05 <= found.high
        naive += stats.ttest_ind(np.log(after) - math.log(1.05), np.log(before)).pvalue > 0.05
    assert held >= 0.92 * 150
    assert naive <= naively * 150  # each round by itself: what batches are for


def test_the_same_code_is_told_apart_by_its_rounds_and_not_here() -> None:
    luck = np.random.default_rng(7)
    claimed = naive = 0
    for _ in range(80):
        before, after = rounds(luck, along=0.9), rounds(luck, along=0.9)
        claimed += one(before, after) != "inconclusive"
        naive += stats.ttest_ind(np.log(after), np.log(before)).pvalue < 0.05
    assert claimed <= 0.03 * 80
    assert naive > 0.4 * 80


def test_a_drift_within_a_run_is_no_difference_of_code() -> None:
    luck = np.random.default_rng(3)
    drifting = [each * (1 + 0.3 * at / N) for at, each in enumerate(rounds(luck))]
    found = judge_speeds({"x": TimedRounds(before=[rounds(luck)], after=[drifting])})["x"]
    assert found.low is not None
    assert found.low < 1
    assert found.noise is not None
    assert found.noise > 1.1
    assert found.kind == "inconclusive"


def test_one_run_of_the_same_code_strays_from_the_next_and_is_not_called_so() -> None:
    """Each run is fast or slow as a whole, by as much as its own parts differ: means of rounds would prove anything."""
    luck = np.random.default_rng(8)
    wrong = by_batches = seen = 0
    for _ in range(60):
        before, after = [rounds(luck, scale=float(np.exp(luck.normal(0, 0.02)))) for _ in "ab"]
        wrong += one(before, after) != "inconclusive"
        by_batches += stats.ttest_ind(batch_logarithms(before), batch_logarithms(after)).pvalue < 0.05
        seen += one(before, [1.3 * each for each in after]) == "slower"
    assert wrong <= 0.02 * 60
    assert by_batches > 0.4 * 60
    assert seen >= 0.95 * 60


def test_a_burst_in_one_benchmark_hides_no_other() -> None:
    luck = np.random.default_rng(4)
    burst = [each * (1.5 if at > N / 2 else 1) for at, each in enumerate(rounds(luck))]
    calm = TimedRounds(before=[rounds(luck)], after=[rounds(luck, scale=1.3)])
    found = judge_speeds({"calm": calm, "burst": TimedRounds(before=[rounds(luck)], after=[burst])})
    assert (found["calm"].kind, found["burst"].kind) == ("slower", "inconclusive")


def test_runs_count_once_where_there_are_three_a_side() -> None:
    """Each run has a speed of its own, by far more than its rounds differ: rounds would prove anything."""
    luck = np.random.default_rng(5)
    wrong = by_rounds = 0
    for _ in range(60):
        sides = [[rounds(luck, scale=float(np.exp(luck.normal(0, 0.1)))) for _ in range(3)] for _ in range(2)]
        wrong += judge_speeds({"x": TimedRounds(before=sides[0], after=sides[1])})["x"].kind != "inconclusive"
        by_rounds += stats.ttest_ind(*(np.log(np.concatenate(side)) for side in sides)).pvalue < 0.05
    assert wrong <= 0.06 * 60
    assert by_rounds > 0.5 * 60


def test_holm_widens_every_interval() -> None:
    luck = np.random.default_rng(6)
    same = rounds(luck)
    timed = {str(at): TimedRounds(before=[same], after=[same]) for at in range(10)}
    assert [found.level for found in judge_speeds(timed).values()] == pytest.approx([1 - 0.05 / 10] * 10)


@pytest.mark.parametrize(
    ("before", "words"),
    [([], "no rounds were saved"), ([1.0] * 3, "too few rounds: n = 3"), ([0.0] * 40, "the clock is too coarse")],
)
def test_without_enough_rounds_there_is_no_interval(before: list[float], words: str) -> None:
    found = judge_speeds({"x": TimedRounds(before=[before], after=[[1.0] * 40])})["x"]
    assert (found.kind, found.low, found.noise) == ("inconclusive", None, None)
    assert words in found.reason


def test_rounds_that_do_not_vary_are_told_apart_by_permutations() -> None:
    found = judge_speeds({"x": TimedRounds(before=[[1.0] * 40], after=[[2.0] * 40])})["x"]
    assert (found.kind, found.ratio, found.low, found.high) == ("slower", 2.0, 2.0, 2.0)
    assert one([1.0] * 40, [1.0] * 40) == "inconclusive"


def test_every_round_is_in_one_batch() -> None:
    found = batch_logarithms([float(at) for at in range(1, 38)])
    expected = [
        math.log(np.median(part)) for part in np.split(np.arange(1, 38), [at * 37 // 16 for at in range(1, 16)])
    ]
    assert found == pytest.approx(expected)
