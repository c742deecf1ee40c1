"""Estimates from rounds of timing, and verdicts from estimates."""

import gc
import math
import time

import numpy as np
import pytest
from benchmarks.claims import Claim, counted, from_json, to_json
from benchmarks.paired import (
    Estimate,
    Rounds,
    cpu_time,
    difference,
    estimate,
    exponent,
    local_slopes,
    ratio,
    verdict,
)

NOISE = np.random.default_rng(3)


def test_a_ratio_within_rounds_is_robust_to_a_slowing_machine() -> None:
    slowing = np.linspace(1.0, 3.0, 60)
    measured = ratio(1.1 * slowing * NOISE.lognormal(0, 0.01, 60), slowing * NOISE.lognormal(0, 0.01, 60))
    assert measured.low < 1.1 < measured.high
    assert measured.high - measured.low < 0.02


def test_a_difference_is_taken_within_rounds() -> None:
    measured = difference([2.5, 3.5, 9.5], [2.0, 3.0, 9.0])
    assert (measured.figure, measured.low, measured.high) == (0.5, 0.5, 0.5)


def test_a_slow_round_among_many_changes_nothing() -> None:
    usual = NOISE.normal(1.0, 0.01, 40)
    assert estimate([*usual, 50.0]).high < 1.02


@pytest.mark.thorough
def test_the_interval_has_its_nominal_coverage() -> None:
    estimates = [estimate(NOISE.lognormal(0, 0.3, 40)) for _ in range(200)]
    covered = sum(interval.low <= 1.0 <= interval.high for interval in estimates)
    assert 180 <= covered <= 200


def test_the_same_rounds_give_the_same_interval() -> None:
    samples = NOISE.normal(0, 1, 30)
    assert estimate(samples) == estimate(samples.copy())


def test_rounds_rotate_the_order_and_time_each_contestant_once() -> None:
    order: list[str] = []
    rounds = Rounds({name: lambda name=name: order.append(name) for name in "abc"})  # type: ignore[misc]  # mypy does not see the default
    for _ in range(3):
        rounds()
    assert "".join(order) == "abcbcacab"
    assert {name: len(times) for name, times in rounds.times.items()} == {"a": 3, "b": 3, "c": 3}


def test_warm_up_rounds_are_not_recorded() -> None:
    runs: list[int] = []
    rounds = Rounds({"a": lambda: runs.append(1)})
    assert rounds.warm(2) >= 0
    assert (len(runs), rounds.times) == (2, {"a": []})


def test_a_contestant_may_return_its_own_time() -> None:
    rounds = Rounds({"a": lambda: 1.5}, lambda run: float(run()))
    rounds()
    assert rounds.times == {"a": [1.5]}


def test_cpu_time_excludes_waiting() -> None:
    def work() -> None:
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass

    assert cpu_time(lambda: time.sleep(0.05)) < 0.02 <= cpu_time(work)


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_collection_is_disabled_during_timing(collects: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        states: list[bool] = []
        cpu_time(lambda: states.append(gc.isenabled()))
        assert (states, gc.isenabled()) == ([False], collects)
    finally:
        (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_an_exponent_equals_the_power_of_the_costs(power: float) -> None:
    sizes = (512, 1024, 2048, 4096, 8192)
    rounds = [[1e-9 * size**power * NOISE.lognormal(0, 0.01) for size in sizes] for _ in range(12)]
    assert math.isclose(exponent(sizes, rounds).figure, power, abs_tol=0.02)
    assert all(math.isclose(slope, power, abs_tol=0.1) for slope in local_slopes(sizes, rounds))


def test_local_slopes_show_a_change_of_the_exponent() -> None:
    sizes = (1, 2, 4, 8, 16)
    bent = [[1.0, 1.0, 1.0, 4.0, 16.0]]
    assert local_slopes(sizes, bent) == pytest.approx([0.0, 0.0, 2.0, 2.0])


WIDE, NARROW = Estimate(1.0, 0.9, 1.1), Estimate(1.0, 0.999, 1.001)
SLOW = Estimate(1.05, 1.04, 1.06)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (Estimate(1.0, 0.99, 1.019), "met"),
        (Estimate(1.0, 0.99, 1.03), "inconclusive"),
        (Estimate(1.03, 1.01, 1.05), "inconclusive"),
        (Estimate(1.05, 1.021, 1.08), "not met"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(measured: Estimate, expected: str) -> None:
    assert verdict(measured, 1.02) == expected
    negated = Estimate(-measured.figure, -measured.high, -measured.low)
    assert verdict(negated, -1.02, at_most=False) == expected


def test_a_noisy_a_a_comparison_makes_a_verdict_inconclusive() -> None:
    assert verdict(NARROW, 1.02, twin=WIDE) == "inconclusive"
    assert verdict(SLOW, 1.02, twin=WIDE) == "inconclusive"
    assert verdict(NARROW, 1.02, twin=NARROW) == "met"
    assert verdict(Estimate(100, 90, 110), 350, twin=Estimate(3, -20, 20), null_value=0.0) == "met"


def test_an_undetected_contrast_makes_a_verdict_inconclusive() -> None:
    assert verdict(NARROW, 1.02, contrast=SLOW) == "met"
    assert verdict(NARROW, 1.02, contrast=NARROW) == "inconclusive"
    assert verdict(NARROW, 1.02, contrast=WIDE) == "inconclusive"


def test_claims_round_trip_with_their_verdicts() -> None:
    claims = [
        Claim("P1", "step", NARROW, limit=1.02, twin=NARROW, contrast=SLOW),
        Claim("", "told", WIDE, "ms", note="so"),
        counted("P8", "torch", 1),
    ]
    assert from_json(to_json(claims)) == claims
    assert [claim.verdict for claim in claims] == ["met", None, "not met"]


def test_times_scales_figure_and_interval() -> None:
    assert Estimate(1.0, 0.5, 2.0).times(1e3) == Estimate(1000.0, 500.0, 2000.0)
