"""Warm-up, and properties of every schedule."""

import pytest

from paribus import Schedule
from paribus_optim.constant import Constant
from paribus_optim.halved import Halved
from paribus_optim.inverse_sqrt import InverseSqrt
from paribus_optim.polynomial import Polynomial
from paribus_optim.trapezoid import Trapezoid
from paribus_optim.warmup import warmup_factor, warmup_steps
from paribus_optim.warmup_cosine import WarmupCosine

SCHEDULES: list[Schedule] = [
    Constant(),
    Constant(warmup=0.3),
    Constant(warmup=1.0),
    WarmupCosine(),
    WarmupCosine(warmup=0.0, floor=0.1),
    WarmupCosine(warmup=1.0),
    WarmupCosine(warmup=0.5, floor=1.0),
    InverseSqrt(),
    InverseSqrt(warmup=0.0),
    InverseSqrt(warmup=1.0),
    Halved(),
    Halved(warmup=0.3, after=0.3),
    Polynomial(),
    Polynomial(warmup=0.5, power=3.0),
    Polynomial(warmup=1.0, floor=0.1),
    Trapezoid(),
    Trapezoid(warmup=0.5, decay=0.5, decay_shape="sqrt"),
    Trapezoid(warmup=0.0, decay=1.0),
]


def named(schedule: Schedule) -> str:
    return f"{type(schedule).__name__}{vars(schedule)}"


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("steps", [1, 2, 7, 100])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=named)
def test_schedules_rise_and_then_fall(schedule: Schedule, steps: int) -> None:
    factors = [schedule.factor(step, steps) for step in range(steps)]
    top = factors.index(1)
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=named)
def test_the_step_after_the_last_is_defined(schedule: Schedule) -> None:
    assert 0 <= schedule.factor(20, 20) <= schedule.factor(19, 20)


def test_the_warm_up_is_linear() -> None:
    assert [warmup_factor(step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert warmup_factor(0, 0) == 1.0


@pytest.mark.parametrize(("share", "steps", "expected"), [(0.1, 100, 10), (0.0, 100, 0), (1.0, 7, 7), (0.1, 3, 0)])
def test_shares_are_rounded_to_steps(share: float, steps: int, expected: int) -> None:
    assert warmup_steps(share, steps) == expected
