"""A warm-up, then half a cosine."""

from __future__ import annotations

import math
from typing import Annotated, final

from paribus import Range, Schedule
from paribus_optim.warmup import warmed, warmup_steps


@final
class WarmupCosine(Schedule):
    """Rises to 1, then falls by half a cosine: "SGDR: Stochastic Gradient Descent with Warm Restarts" (Loshchilov &
    Hutter 2017), without the restarts.

    The floor is reached where the run is over, so that its last step still moves.
    """

    def __init__(
        self,
        *,
        warmup: Annotated[float, "share of the steps that warm up", Range(0, 1)] = 0.1,
        floor: Annotated[float, "share of the learning rate that is left at the end", Range(0, 1)] = 0.0,
    ) -> None:
        self.warmup = warmup
        self.floor = floor

    def factor(self, step: int, steps: int) -> float:
        warmup = warmup_steps(self.warmup, steps)
        if step < warmup:
            return warmed(step, warmup)
        done = min(1.0, (step - warmup) / max(1, steps - warmup))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))
