"""Time limits of training: it stops at the first step after the limit, and a resumed run counts the time before."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.models import training_clock
from paribus.models.training_clock import SCHEDULE_STEPS, TrainingClock, is_evaluation_due
from paribus.registry import Registry, installed
from paribus.specs.resolve import resolved
from paribus.specs.trainer_options import max_seconds
from paribus.train.trial import Record, TrialContext, run_trial
from paribus.train.trial_callback import InterruptedTrialError

LIMIT = 2.0
CPU = torch.device("cpu")
TINY = (
    "dims.width=16", "dims.layers=1", "dims.heads=2", "dims.length=16", "data.batch=4", "data.validation=4",
    "tokenizer=bytes", "objective=clm", "topology=decoder", "dropout=0.1",
)  # fmt: skip


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


def spec(registry: Registry, *overrides: str) -> dict[str, Any]:
    return resolved("encoder-tiny", *TINY, *overrides, registry=registry)


class Clock:
    """Manual clock."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, Clock]:
    cpu, wall = Clock(), Clock()
    monkeypatch.setattr(time, "process_time", cpu)
    monkeypatch.setattr(time, "perf_counter", wall)
    return cpu, wall


def test_the_limit_counts_cpu_time_of_this_process(clocks: tuple[Clock, Clock]) -> None:
    cpu, wall = clocks
    clock = TrainingClock(10)
    clock.start(CPU)
    wall.now += 1000  # another process uses the core
    cpu.now += 4
    assert not clock.is_over()
    assert clock.fraction() == 0.4
    clock.pause()
    cpu.now += 50  # an evaluation
    assert clock.fraction() == 0.4
    clock.start(CPU)
    cpu.now += 6
    assert clock.is_over()
    assert clock.schedule_step() == SCHEDULE_STEPS - 1
    clock.pause()
    assert (clock.spent, clock.seconds) == (10, 1000)


def test_the_limit_counts_wall_time_on_an_accelerator(
    clocks: tuple[Clock, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, wall = clocks
    monkeypatch.setattr(training_clock, "synchronize", lambda device: None)
    clock = TrainingClock(10)
    clock.start(torch.device("cuda"))
    cpu.now += 100  # a waiting thread
    assert not clock.is_over()
    wall.now += 10
    assert clock.is_over()


def test_work_of_an_accelerator_counts_where_it_was_queued(
    clocks: tuple[Clock, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, wall = clocks
    queue = [5.0]  # seconds of work that the device has, first of an evaluation

    def synchronize(device: torch.device) -> None:
        wall.now += sum(queue)
        queue.clear()

    monkeypatch.setattr(training_clock, "synchronize", synchronize)
    clock, device = TrainingClock(100), torch.device("cuda")
    clock.start(device)
    assert clock.seconds == 0
    queue.append(10)  # training steps, which the CPU has queued in no time
    with clock.paused(device):
        queue.append(3)  # a check
    queue.append(10)
    clock.pause()
    assert (clock.seconds, clock.spent) == (20, 20)


def test_evaluations_are_evenly_spaced_in_time() -> None:
    done = 0
    fractions = []
    for percent in range(101):
        if is_evaluation_due(percent / 100, done, 4):
            done += 1
            fractions.append(percent)
    assert fractions == [25, 50, 75, 100]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [({"seconds": 60}, 60), ("00:01:00:01", 3601), (None, None), ({"days": 1, "hours": 1}, 9e4)],
)  # fmt: skip
def test_max_time_is_parsed_like_that_of_lightning(text: Any, seconds: float | None) -> None:
    assert max_seconds({"max_time": text}) == seconds


@pytest.mark.parametrize("text", ["soon", "{seconds: 0}", "{weeks: 1}", "60", "{seconds: -1}", "{seconds: true}"])
def test_an_invalid_time_is_rejected(registry: Registry, text: str) -> None:
    with raises_problem(SpecError, "wrong-type", "trainer.max_time", "{seconds: 60}"):
        spec(registry, f"trainer.max_time={text}")


def test_a_schedule_over_steps_is_rejected_with_a_time_limit_only(registry: Registry, tmp_path: Path) -> None:
    changing = spec(
        registry,
        "topology=encoder",
        "objective={name: mlm, rate: 0.3, mask_schedule: {final_rate: 0.1}}",
        "trainer.max_time={seconds: 1}",
    )
    with raises_problem(SpecError, "does-not-fit", "trainer.max_time"):
        run_trial(changing, registry, TrialContext("changing", tmp_path))


@pytest.fixture(scope="module")
def cut_and_resumed(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Record, float]:
    """Return the step at which a trial was interrupted, its record once resumed, and the seconds of its last step."""
    folder = tmp_path_factory.mktemp("cut")
    timed = spec(registry, f"trainer.max_time={{seconds: {LIMIT}}}")
    steps = 0

    def on_step(step: int, loss: float) -> None:
        nonlocal steps
        steps = step

    with pytest.raises(InterruptedTrialError, match="asked to stop"):
        run_trial(timed, registry, TrialContext("cut", folder, should_stop=lambda: steps >= 2, on_step=on_step))
    ends = [0.0]
    record = run_trial(
        timed, registry, TrialContext("cut", folder, on_step=lambda step, loss: ends.append(time.process_time()))
    )
    return steps, record, ends[-1] - ends[-2]


@pytest.mark.thorough
def test_a_resumed_trial_ends_at_the_first_step_after_its_time_limit(
    cut_and_resumed: tuple[int, Record, float],
) -> None:
    interrupted, record, last_step = cut_and_resumed
    result, spent = record["result"], record["provenance"]["spent_seconds"]
    steps = result["steps"]
    assert steps > interrupted == 2
    assert LIMIT <= spent < LIMIT + last_step + 0.01
    assert len(result["losses"]) == steps
    assert result["tokens"] == steps * 4 * 16
    assert result["time_budget"] == {"seconds": LIMIT, "clock": "cpu"}


@pytest.mark.thorough
def test_the_last_step_is_evaluated(cut_and_resumed: tuple[int, Record, float]) -> None:
    _, record, _ = cut_and_resumed
    curve = record["result"]["curve"]
    assert curve[-1]["step"] == record["result"]["steps"]
    assert [point["step"] for point in curve] == sorted({point["step"] for point in curve})
    assert record["result"]["metrics"]["val/clm/loss"] == curve[-1]["val/clm/loss"]


@pytest.mark.thorough
def test_progress_output_is_not_counted(registry: Registry, tmp_path: Path) -> None:
    def burn_cpu_time(step: int, loss: float) -> None:
        end = time.process_time() + 0.05
        while time.process_time() < end:
            pass

    timed = spec(registry, "trainer.max_time={seconds: 100}", "trainer.max_steps=6")
    start = time.process_time()
    record = run_trial(timed, registry, TrialContext("output", tmp_path, on_step=burn_cpu_time))
    assert record["provenance"]["spent_seconds"] < time.process_time() - start - 6 * 0.05


def test_a_limit_of_steps_ends_a_trial_before_its_time_limit(registry: Registry, tmp_path: Path) -> None:
    timed = spec(registry, "trainer.max_time={seconds: 100}", "trainer.max_steps=6")
    result = run_trial(timed, registry, TrialContext("few", tmp_path))["result"]
    assert result["steps"] == 6
    assert list(result["certificate"]["batch_digests"]) == ["1", "2", "4"]
