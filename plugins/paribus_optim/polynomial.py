"""A warm-up, then a straight line down, or another power of it."""

from __future__ import annotations

from typing import Annotated, final

from paribus import Range, Schedule
from paribus_optim.warmup import warmed, warmup_steps


@final
class Polynomial(Schedule):
    """Rises to 1, then falls to the floor as a power of what is left: "BERT" (Devlin et al. 2019), by a straight line.

    The floor is reached where the run is over, so that its last step still moves.
    """

    def __init__(
        self,
        *,
        warmup: Annotated[
            float, "share of the steps that warm up (crammed BERT: a half, a triangle)", Range(0, 1)
        ] = 0.1,
        floor: Annotated[float, "share of the learning rate that is left at the end", Range(0, 1)] = 0.0,
        power: Annotated[float, "1: a straight line; above, it falls faster at first", Range(above=0)] = 1.0,
    ) -> None:
        self.warmup = warmup
        self.floor = floor
        self.power = power

    def factor(self, step: int, steps: int) -> float:
        warmup = warmup_steps(self.warmup, steps)
        if step < warmup:
            return warmed(step, warmup)
        left = max(0.0, 1 - (step - warmup) / max(1, steps - warmup))
        return float(self.floor + (1 - self.floor) * left**self.power)
