"""Cosine schedule with warm-up (`warmup-cosine`)."""

from __future__ import annotations

import math
from typing import Annotated, final

from paribus import Range, Schedule
from paribus_optim.warmup import warmup_factor, warmup_steps


@final
class WarmupCosine(Schedule):
    """Cosine decay after a warm-up (Loshchilov & Hutter 2017), without restarts.

    "SGDR: Stochastic Gradient Descent with Warm Restarts". The floor is reached one step after the last, so that the
    last step still moves.
    """

    def __init__(
        self,
        *,
        warmup: Annotated[float, "share of the steps that warm up", Range(0, 1)] = 0.1,
        floor: Annotated[float, "share of the learning rate at the end", Range(0, 1)] = 0.0,
    ) -> None:
        self.warmup = warmup
        self.floor = floor

    def factor(self, step: int, steps: int) -> float:
        warmup = warmup_steps(self.warmup, steps)
        if step < warmup:
            return warmup_factor(step, warmup)
        progress = min(1.0, (step - warmup) / max(1, steps - warmup))
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))
