"""Constant schedule."""

from paribus_optim.constant import Constant


def test_the_factor_is_constant() -> None:
    assert [Constant().factor(step, 5) for step in range(5)] == [1.0] * 5


def test_the_factor_is_constant_after_the_warm_up() -> None:
    assert [Constant(warmup=0.5).factor(step, 4) for step in range(4)] == [0.5, 1.0, 1.0, 1.0]
