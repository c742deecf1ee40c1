"""Cosine schedule with warm restarts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, final

from paribus import Range, Schedule, hookimpl


@final
class WarmRestarts(Schedule):
    """Cosine decay with restarts, after a warm-up: "SGDR: Stochastic Gradient Descent with Warm Restarts" (Loshchilov &
    Hutter 2017), with cycles of equal length.

    Each cycle starts at the learning rate. The floor is reached one step after the last, so that the last step still
    moves.
    """

    def __init__(
        self,
        *,
        warmup: Annotated[float, "share of the steps that warm up", Range(0, 1)] = 0.1,
        cycles: Annotated[int, "number of cycles, which share the other steps", Range(1, 1000)] = 3,
        floor: Annotated[float, "share of the learning rate at the end of a cycle", Range(0, 1)] = 0.0,
    ) -> None:
        self.warmup = warmup
        self.cycles = cycles
        self.floor = floor

    def factor(self, step: int, steps: int) -> float:
        warmup = round(self.warmup * steps)
        if step < warmup:
            return (step + 1) / warmup
        remaining = max(1, steps - warmup)
        done = step - warmup
        progress = done * self.cycles % remaining / remaining if done < remaining else 1.0  # of the current cycle
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))


@hookimpl
def schedule() -> Mapping[str, type[Schedule]]:
    return {"warm-restarts": WarmRestarts}
