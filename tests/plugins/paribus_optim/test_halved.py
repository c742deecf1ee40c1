"""Halving schedule."""

import pytest

from paribus_optim.halved import Halved


def test_it_halves_at_each_tenth_of_the_second_half() -> None:
    factors = [Halved().factor(step, 100) for step in (0, 49, 50, 59, 60, 99)]
    assert factors == pytest.approx([1, 1, 1 / 2, 1 / 2, 1 / 4, 1 / 32])


def test_a_warm_up_is_optional() -> None:
    assert Halved(warmup=0.1).factor(0, 100) == pytest.approx(0.1)
