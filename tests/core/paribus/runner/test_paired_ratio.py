"""A median of ratios of rounds that took turns, with the interval that holds it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.planning.paired_ratio import Ratio, interval, paired_ratio, widen


@given(st.integers(1, 200))
def test_the_interval_contains_the_median_in_95_of_100_samples_of_any_distribution(n: int) -> None:
    low, high = interval([float(number) for number in range(n)])
    if n < 6:
        assert (low, high) == (-math.inf, math.inf)
        return
    below = sum(math.comb(n, heads) for heads in range(int(low) + 1)) / 2**n  # the true median lies under the low end
    assert low == n - 1 - high
    assert 1 - 2 * below >= 0.95
    inner = below + math.comb(n, int(low) + 1) / 2**n
    assert 1 - 2 * inner < 0.95  # and no narrower one would


def test_a_slow_round_does_not_change_the_ratio() -> None:
    previous = [1.0, 4.0, 1.0, 2.0, 1.0, 9.0]
    assert paired_ratio(previous, [1.25 * item for item in previous]) == pytest.approx(Ratio(1.25, 1.25, 1.25, 6))


def test_no_interval_is_narrower_than_the_noise_of_the_baseline() -> None:
    result = Ratio(1.0, 0.99, 1.01, 20)
    assert widen(result, Ratio(1.05, 1.04, 1.06, 20)) == pytest.approx(Ratio(1.0, 0.99 / 1.06, 1.01 * 1.06, 20))
    assert widen(result, Ratio(0.9, 0.8, 0.95, 20)) == pytest.approx(Ratio(1.0, 0.99 * 0.8, 1.01 / 0.8, 20))
    assert widen(result, Ratio(1.0, 0.0, 1.0, 20)).high == math.inf
