"""Constant schedule (`constant`)."""

from __future__ import annotations

from typing import Annotated, final

from paribus import Range, Schedule
from paribus_optim.warmup import warmup_factor, warmup_steps


@final
class Constant(Schedule):
    """Constant learning rate after an optional warm-up."""

    def __init__(self, *, warmup: Annotated[float, "share of the steps that warm up", Range(0, 1)] = 0.0) -> None:
        self.warmup = warmup

    def factor(self, step: int, steps: int) -> float:
        return warmup_factor(step, warmup_steps(self.warmup, steps))
