"""What is claimed of rounds: the truth as often as promised, and nothing that the same code would show."""

import math

import numpy as np
import pytest
from scipy import stats

from paribus.report.benchmarks.speeds import BATCHES, Timed, batches, judge

N = 160


def rounds(luck: np.random.Generator, *, scale: float = 1.0, along: float = 0.0, n: int = N) -> list[float]:
    """A noisy machine: rounds that follow each other are alike where `along` is near 1."""
    noise, state = [], 0.0
    for shock in luck.normal(0, 0.05, n):
        state = along * state + math.sqrt(1 - along**2) * shock
        noise.append(state)
    return [float(scale * 0.01 * math.exp(each)) for each in noise]


def one(before: list[float], after: list[float]) -> str:
    return judge({"x": Timed(before=[before], after=[after])})["x"].kind


def test_the_interval_is_that_of_welch() -> None:
    luck = np.random.default_rng(0)
    before, after = rounds(luck), rounds(luck, scale=1.1)
    found = judge({"x": Timed(before=[before], after=[after])})["x"]
    sides = [np.log([np.median(part) for part in np.array_split(np.array(side), BATCHES)]) for side in (after, before)]
    expected = stats.ttest_ind(*sides, equal_var=False)
    low, high = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert [found.low, found.high] == pytest.approx([math.exp(low), math.exp(high)])
    assert found.ratio == pytest.approx(math.exp(np.mean(sides[0]) - np.mean(sides[1])))


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
        found = judge({"x": Timed(before=[before], after=[after])})["x"]
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


def test_a_drift_that_no_batch_shows_is_in_the_a_a_and_nothing_is_claimed() -> None:
    luck = np.random.default_rng(3)
    steady = rounds(luck)
    drifting = [each * (1 + 0.3 * at / N) for at, each in enumerate(rounds(luck))]
    found = judge({"x": Timed(before=[steady], after=[drifting])})["x"]
    assert found.low is not None
    assert found.low > 1  # an interval alone would claim it
    assert (found.kind, found.why) == ("inconclusive", "the A/A is as wide")


def test_what_befell_one_benchmark_may_befall_any() -> None:
    """A burst in one run, and another benchmark 10 % slower: that, too, may have been the machine."""
    luck = np.random.default_rng(4)
    timed = {
        f"calm {at}": Timed(before=[rounds(luck)], after=[rounds(luck, scale=1.1 if at == 0 else 1)]) for at in range(3)
    }
    assert judge(timed)["calm 0"].kind == "slower"
    burst = [each * (1.5 if at > N / 2 else 1) for at, each in enumerate(rounds(luck))]
    found = judge({**timed, "burst": Timed(before=[rounds(luck)], after=[burst])})
    assert found["calm 0"].kind == "inconclusive"


def test_runs_count_once_where_there_are_three_a_side() -> None:
    """Each run has a speed of its own, by far more than its rounds differ: rounds would prove anything."""
    luck = np.random.default_rng(5)
    wrong = by_rounds = 0
    for _ in range(60):
        sides = [[rounds(luck, scale=float(np.exp(luck.normal(0, 0.1)))) for _ in range(3)] for _ in range(2)]
        wrong += judge({"x": Timed(before=sides[0], after=sides[1])})["x"].kind != "inconclusive"
        by_rounds += stats.ttest_ind(*(np.log(np.concatenate(side)) for side in sides)).pvalue < 0.05
    assert wrong <= 0.06 * 60
    assert by_rounds > 0.5 * 60


def test_holm_widens_every_interval() -> None:
    luck = np.random.default_rng(6)
    same = rounds(luck)
    timed = {str(at): Timed(before=[same], after=[same]) for at in range(10)}
    assert [found.level for found in judge(timed).values()] == pytest.approx([1 - 0.05 / 10] * 10)


@pytest.mark.parametrize(
    ("before", "words"),
    [([], "no rounds were saved"), ([1.0] * 3, "too few rounds: n = 3"), ([0.0] * 40, "the clock is too coarse")],
)
def test_without_enough_rounds_there_is_no_interval(before: list[float], words: str) -> None:
    found = judge({"x": Timed(before=[before], after=[[1.0] * 40])})["x"]
    assert (found.kind, found.low, found.noise) == ("inconclusive", None, None)
    assert words in found.why


def test_rounds_that_do_not_vary_are_told_apart_by_permutations() -> None:
    found = judge({"x": Timed(before=[[1.0] * 40], after=[[2.0] * 40])})["x"]
    assert (found.kind, found.ratio, found.low, found.high) == ("slower", 2.0, 2.0, 2.0)
    assert one([1.0] * 40, [1.0] * 40) == "inconclusive"


def test_every_round_is_in_one_batch() -> None:
    found = batches([float(at) for at in range(1, 38)])
    expected = [
        math.log(np.median(part)) for part in np.split(np.arange(1, 38), [at * 37 // 16 for at in range(1, 16)])
    ]
    assert found == pytest.approx(expected)
