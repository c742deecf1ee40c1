"""Trapezoidal schedule."""

import pytest

from paribus_optim.trapezoid import Trapezoid


def test_it_has_a_warm_up_a_plateau_and_a_decay() -> None:
    schedule = Trapezoid(warmup=0.1, decay=0.2)
    assert [schedule.factor(step, 100) for step in (4, 9, 50, 80, 90, 100)] == pytest.approx([0.5, 1, 1, 1, 0.5, 0])


def test_sqrt_falls_faster_at_first() -> None:
    assert Trapezoid(warmup=0.0, decay=1.0, decay_shape="sqrt").factor(25, 100) == pytest.approx(0.5)


def test_without_decay_it_is_constant() -> None:
    assert Trapezoid(warmup=0.0, decay=0.0).factor(99, 100) == 1.0


def test_shares_above_1_are_rejected() -> None:
    message = r"got 0.6 \+ 0.5"
    with pytest.raises(ValueError, match=message):
        Trapezoid(warmup=0.6, decay=0.5)
