"""Inverse square root schedule."""

import pytest

from paribus_optim.inverse_sqrt import InverseSqrt


def test_matches_the_formula_of_the_paper_with_a_maximum_of_1() -> None:
    width, warmup = 512, 4000

    def published(step: int) -> float:
        return float(width**-0.5 * min(step**-0.5, step * warmup**-1.5))

    schedule = InverseSqrt(warmup=0.04)
    for step in (1, 100, 3999, 4000, 4001, 50_000, 100_000):
        expected = published(step) / published(warmup)
        assert schedule.factor(step - 1, 100_000) == pytest.approx(expected)


def test_it_is_half_at_four_times_the_warm_up() -> None:
    assert InverseSqrt(warmup=0.1).factor(39, 100) == pytest.approx(0.5)
