"""Estimate of the remaining time of a study."""

from __future__ import annotations

from typing import Any

import pytest

from paribus.runner.progress import Event, RemainingTime
from paribus.storage.store import Trial


def trial(variant: str, seed: int) -> Trial:
    return Trial(f"{variant}-{seed}", variant, seed, {}, {}, "code", "corpus")


GRID = [trial(variant, seed) for seed in range(4) for variant in ("fast", "slow")]


class Study:
    """Trials that take 10 and 100 seconds, on a clock of its own."""

    def __init__(self, jobs: int = 1) -> None:
        self.now = 0.0
        self.remaining = RemainingTime(GRID, jobs, lambda: self.now)

    def tell(self, kind: Any, trial: Trial, **fields: Any) -> None:
        self.remaining.on_event(Event(kind=kind, trial=trial, **fields))

    def run(self, trial: Trial) -> None:
        self.tell("started", trial)
        self.now += 10 if trial.variant == "fast" else 100
        self.tell("ended", trial, state="done")


def test_there_is_no_estimate_without_progress() -> None:
    study = Study()
    assert study.remaining.seconds() is None
    study.tell("started", GRID[0])
    study.now += 1
    study.tell("progress", GRID[0], step=1, steps=100)
    assert study.remaining.seconds() is None


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_variant_takes_the_mean_of_its_trials(jobs: int) -> None:
    study = Study(jobs)
    study.run(GRID[0])
    assert study.remaining.unseen_variants == 1
    study.run(GRID[1])
    assert study.remaining.unseen_variants == 0
    assert study.remaining.seconds() == pytest.approx((3 * 10 + 3 * 100) / jobs)


def test_running_trials_are_extrapolated() -> None:
    study = Study(jobs=8)
    study.tell("started", GRID[0])
    study.tell("started", GRID[1])
    study.now += 5
    study.tell("progress", GRID[0], step=50, steps=100)
    study.tell("progress", GRID[1], step=10, steps=100)
    assert study.remaining.seconds() == pytest.approx(max(45, (5 + 45 + 3 * 10 + 3 * 50) / 8))


@pytest.mark.parametrize("end", ["diverged", "failed", "timeout"])
def test_failed_trials_do_not_count_for_the_estimate(end: Any) -> None:
    study = Study()
    study.run(GRID[0])
    study.tell("started", GRID[2])
    study.now += 1
    study.tell("ended", GRID[2], state=end)
    assert study.remaining.seconds() == pytest.approx(2 * 10 + 4 * 10)


def test_the_estimate_ends_at_zero() -> None:
    study = Study()
    for trial in GRID:
        study.run(trial)
    assert study.remaining.seconds() == 0
