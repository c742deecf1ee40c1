"""Inverse square root schedule (`inverse-sqrt`)."""

from __future__ import annotations

import math
from typing import Annotated, final

from paribus import Range, Schedule
from paribus_optim.warmup import warmup_factor, warmup_steps


@final
class InverseSqrt(Schedule):
    """Inverse square root schedule after a warm-up (Vaswani et al. 2017).

    "Attention Is All You Need". The warm-up is a share of the steps, as in every schedule; the paper's is 4000 of 100
    000.
    """

    def __init__(self, *, warmup: Annotated[float, "share of the steps that warm up", Range(0, 1)] = 0.04) -> None:
        self.warmup = warmup

    def factor(self, step: int, steps: int) -> float:
        warmup = max(1, warmup_steps(self.warmup, steps))
        return min(warmup_factor(step, warmup), math.sqrt(warmup / (step + 1)))
