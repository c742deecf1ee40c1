"""Clock of a training run: time spent in training steps, and whether the time budget is used up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final

import torch

from paribus.assembly.devices import synchronize

SCHEDULE_STEPS: Final = 10_000  # steps that a schedule sees when the budget is a time


@final
class TrainingClock:
    """Clock that runs during training steps and stands still between them.

    `seconds` is wall time. `spent` is the time that the limit bounds: on a CPU the CPU time of this process, which
    other processes cannot change; on an accelerator, where this process mostly waits, and without a limit, wall time.
    """

    def __init__(self, limit: float | None = None) -> None:
        self.limit = limit
        self.seconds = 0.0
        self.spent = 0.0
        self.clock = "cpu"
        self._device = torch.device("cpu")
        self._started: tuple[float, float] | None = None  # wall and limited time; None while paused

    def start(self, device: torch.device) -> None:
        """Start the clock when the device has done its work so far, which is not part of the training."""
        synchronize(device)
        self._device = device
        self.clock = "cpu" if device.type == "cpu" else "wall"
        self._started = self._now()

    def pause(self) -> None:
        """Stop the clock until `start`, when the device has done the training steps that it was given."""
        if self._started is not None:
            synchronize(self._device)
            wall, limited = self._now()
            self.seconds += wall - self._started[0]
            self.spent += limited - self._started[1]
            self._started = None

    @contextmanager
    def paused(self, device: torch.device) -> Iterator[None]:
        """Stop the clock for the block, if it runs."""
        running = self._started is not None
        self.pause()
        yield
        if running:
            self.start(device)

    def is_over(self) -> bool:
        """Return True if the limit is reached; the current step counts up to now."""
        return self.limit is not None and self.elapsed() >= self.limit

    def fraction(self) -> float:
        """Return the fraction of the limit that is spent, from 0 to 1."""
        return 0.0 if self.limit is None else min(1.0, self.elapsed() / self.limit)

    def schedule_step(self) -> int:
        """Return the same fraction as a step number, for a schedule that counts steps."""
        return min(int(self.fraction() * SCHEDULE_STEPS), SCHEDULE_STEPS - 1)

    def elapsed(self) -> float:
        return self.spent + (0.0 if self._started is None else self._now()[1] - self._started[1])

    def _now(self) -> tuple[float, float]:
        wall = time.perf_counter()
        if self.limit is None or self.clock != "cpu":  # the CPU time is a system call, and only a limit needs it
            return wall, wall
        return wall, time.process_time()


def is_evaluation_due(fraction: float, done: int, evaluations: int) -> bool:
    """Return True if the next of several evaluations is due; they are spread evenly over the time budget."""
    return done < evaluations and fraction >= (done + 1) / evaluations
