"""Cosine schedule."""

import math

import pytest

from paribus_optim.warmup_cosine import WarmupCosine


def test_it_ends_at_the_floor() -> None:
    assert WarmupCosine(floor=0.25).factor(100, 100) == pytest.approx(0.25)
    assert WarmupCosine(floor=0.25).factor(99, 100) == pytest.approx(0.25, abs=1e-3)


def test_it_is_halfway_to_the_floor_in_the_middle() -> None:
    assert WarmupCosine(warmup=0.2, floor=0.5).factor(60, 100) == pytest.approx(0.75)


def test_after_the_warm_up_it_is_a_cosine() -> None:
    schedule = WarmupCosine(warmup=0.1, floor=0.0)
    for step in range(10, 100):
        assert schedule.factor(step, 100) == pytest.approx(math.cos(math.pi * (step - 10) / 90 / 2) ** 2)


def test_it_stays_at_the_floor_after_the_last_step() -> None:
    assert WarmupCosine(floor=0.1).factor(150, 100) == pytest.approx(0.1)
