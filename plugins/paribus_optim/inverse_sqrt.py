"""A warm-up, then a slow fall without an end."""

from __future__ import annotations

import math
from typing import Annotated, final

from paribus import Range, Schedule
from paribus_optim.warmup import warmed, warmup_steps


@final
class InverseSqrt(Schedule):
    """Rises to 1, then falls with the root of the step: "Attention Is All You Need" (Vaswani et al. 2017).

    The warm-up is a share of the steps, here as in every schedule; the paper's is 4000 of 100 000.
    """

    def __init__(self, *, warmup: Annotated[float, "share of the steps that warm up", Range(0, 1)] = 0.04) -> None:
        self.warmup = warmup

    def factor(self, step: int, steps: int) -> float:
        warmup = max(1, warmup_steps(self.warmup, steps))
        return min(warmed(step, warmup), math.sqrt(warmup / (step + 1)))
