"""How long a training has taken, what lies between its steps not counted, and whether its time is over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final

import torch

SCHEDULE_STEPS: Final = 10_000  # into which a training that is cut by time is divided, for a schedule


@final
class TrainingClock:
    """Two clocks that run while steps are taken.

    `seconds` is by the wall. `spent` is what a limit is held against: on a CPU it is CPU time of this process, which
    others cannot slow down by taking the core away, and on an accelerator, which this process waits for, the wall's.
    """

    def __init__(self, limit: float | None = None) -> None:
        self.limit = limit
        self.seconds = 0.0
        self.spent = 0.0
        self.clock = "cpu"
        self._began: tuple[float, float] | None = None  # by both clocks; None: it stands still

    def go(self, device: torch.device) -> None:
        self.clock = "cpu" if device.type == "cpu" else "wall"
        self._began = self._now()

    def pause(self) -> None:
        """What comes now is not of the training."""
        if self._began is not None:
            seconds, own = self._now()
            self.seconds += seconds - self._began[0]
            self.spent += own - self._began[1]
            self._began = None

    @contextmanager
    def paused(self, device: torch.device) -> Iterator[None]:
        """Stop the clock for the block, if it runs."""
        running = self._began is not None
        self.pause()
        yield
        if running:
            self.go(device)

    def over(self) -> bool:
        """Whether the limit has been reached, by a step that is still running."""
        return self.limit is not None and self.so_far() >= self.limit

    def share(self) -> float:
        """How much of the limit is spent, from 0 to 1."""
        return 0.0 if self.limit is None else min(1.0, self.so_far() / self.limit)

    def part(self) -> int:
        """The same in whole parts, for a schedule that counts steps."""
        return min(int(self.share() * SCHEDULE_STEPS), SCHEDULE_STEPS - 1)

    def so_far(self) -> float:
        return self.spent + (0.0 if self._began is None else self._now()[1] - self._began[1])

    def _now(self) -> tuple[float, float]:
        wall = time.perf_counter()
        return wall, time.process_time() if self.clock == "cpu" else wall


def is_evaluation_due(share: float, done: int, points: int) -> bool:
    """Whether the next of `points` evaluations is due, evenly over the time, `done` of which there were."""
    return done < points and share >= (done + 1) / points
