"""A warm-up, a plateau, and a way down."""

import pytest

from paribus_optim.trapezoid import Trapezoid


def test_it_rises_stays_and_falls() -> None:
    schedule = Trapezoid(warmup=0.1, decay=0.2)
    assert [schedule.factor(step, 100) for step in (4, 9, 50, 80, 90, 100)] == pytest.approx([0.5, 1, 1, 1, 0.5, 0])


def test_by_the_root_it_falls_faster_at_first() -> None:
    assert Trapezoid(warmup=0.0, decay=1.0, decay_shape="sqrt").factor(25, 100) == pytest.approx(0.5)


def test_without_a_way_down_it_stays() -> None:
    assert Trapezoid(warmup=0.0, decay=0.0).factor(99, 100) == 1.0


def test_more_than_the_whole_run_is_refused() -> None:
    said = r"got 0.6 \+ 0.5"
    with pytest.raises(ValueError, match=said):
        Trapezoid(warmup=0.6, decay=0.5)
