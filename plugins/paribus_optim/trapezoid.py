"""Trapezoidal schedule (`trapezoid`)."""

from __future__ import annotations

import math
from typing import Annotated, Literal, final

from paribus import Range, Schedule
from paribus_optim.warmup import warmup_factor, warmup_steps


@final
class Trapezoid(Schedule):
    """Trapezoidal schedule: warm-up, plateau, decay (Zhai et al. 2022).

    "Scaling Vision Transformers". ModernBERT used it. The floor is reached one step after the last, so that the last
    step still moves.
    """

    def __init__(
        self,
        *,
        warmup: Annotated[float, "share of the steps that warm up", Range(0, 1)] = 0.1,
        decay: Annotated[float, "share of the steps that decay", Range(0, 1)] = 0.1,
        decay_shape: Annotated[Literal["linear", "sqrt"], "linear, or 1 - √ of the progress (ModernBERT)"] = "linear",
    ) -> None:
        if warmup + decay > 1 + 1e-9:
            raise ValueError(f"`warmup` + `decay` must be at most 1, got {warmup:g} + {decay:g}")
        self.warmup = warmup
        self.decay = decay
        self.decay_shape = decay_shape

    def factor(self, step: int, steps: int) -> float:
        warmup = warmup_steps(self.warmup, steps)
        if step < warmup:
            return warmup_factor(step, warmup)
        decay_steps = warmup_steps(self.decay, steps)
        progress = min(1.0, max(0.0, (step - (steps - decay_steps)) / max(1, decay_steps)))
        return 1 - (math.sqrt(progress) if self.decay_shape == "sqrt" else progress)
