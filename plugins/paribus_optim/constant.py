"""A learning rate that stays."""

from __future__ import annotations

from typing import Annotated, final

from paribus import Range, Schedule
from paribus_optim.warmup import warmed, warmup_steps


@final
class Constant(Schedule):
    """1 throughout, behind a warm-up if there is one."""

    def __init__(self, *, warmup: Annotated[float, "share of the steps that warm up", Range(0, 1)] = 0.0) -> None:
        self.warmup = warmup

    def factor(self, step: int, steps: int) -> float:
        return warmed(step, warmup_steps(self.warmup, steps))
