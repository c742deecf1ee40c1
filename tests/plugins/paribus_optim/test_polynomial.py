"""Polynomial schedule."""

import pytest

from paribus_optim.polynomial import Polynomial


def test_power_1_is_linear_to_the_floor() -> None:
    schedule = Polynomial(warmup=0.1, floor=0.2)
    assert [schedule.factor(step, 100) for step in (9, 10, 55, 100)] == pytest.approx([1.0, 1.0, 0.6, 0.2])


def test_the_power_changes_the_curve() -> None:
    assert Polynomial(warmup=0.0, power=2.0).factor(50, 100) == pytest.approx(0.25)
    assert Polynomial(warmup=0.0, power=0.5).factor(75, 100) == pytest.approx(0.5)


def test_a_warm_up_of_half_the_steps_gives_a_triangle() -> None:
    factors = [Polynomial(warmup=0.5).factor(step, 100) for step in range(100)]
    assert factors[:50] == pytest.approx([(step + 1) / 50 for step in range(50)])
    assert factors[50:] == pytest.approx([1 - step / 50 for step in range(50)])


def test_it_stays_at_the_floor_after_the_last_step() -> None:
    assert Polynomial(floor=0.1).factor(150, 100) == pytest.approx(0.1)
