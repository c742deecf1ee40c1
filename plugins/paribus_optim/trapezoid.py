"""A warm-up, a plateau, and a way down."""

from __future__ import annotations

import math
from typing import Annotated, Literal, final

from paribus import Range, Schedule
from paribus_optim.warmup import warmed, warmup_steps


@final
class Trapezoid(Schedule):
    """Rises to 1, stays, and falls at the end: "Scaling Vision Transformers" (Zhai et al. 2022); ModernBERT's.

    What is left behind the plateau is reached where the run is over, so that its last step still moves.
    """

    def __init__(
        self,
        *,
        warmup: Annotated[float, "share of the steps that warm up", Range(0, 1)] = 0.1,
        decay: Annotated[float, "share of the steps that come down", Range(0, 1)] = 0.1,
        decay_shape: Annotated[
            Literal["linear", "sqrt"], "how they do: evenly, or by 1 - √ of how far they are (ModernBERT)"
        ] = "linear",
    ) -> None:
        if warmup + decay > 1 + 1e-9:
            raise ValueError(f"`warmup` ({warmup:g}) and `decay` ({decay:g}) are shares of one run; valid: a sum ≤ 1")
        self.warmup = warmup
        self.decay = decay
        self.decay_shape = decay_shape

    def factor(self, step: int, steps: int) -> float:
        warmup = warmup_steps(self.warmup, steps)
        if step < warmup:
            return warmed(step, warmup)
        falling = warmup_steps(self.decay, steps)
        done = min(1.0, max(0.0, (step - (steps - falling)) / max(1, falling)))
        return 1 - (math.sqrt(done) if self.decay_shape == "sqrt" else done)
