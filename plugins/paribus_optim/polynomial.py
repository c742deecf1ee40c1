"""Polynomial schedule (`polynomial`)."""

from __future__ import annotations

from typing import Annotated, final

from paribus import Range, Schedule
from paribus_optim.warmup import warmup_factor, warmup_steps


@final
class Polynomial(Schedule):
    """Polynomial decay after a warm-up (Devlin et al. 2019), linear by default as in BERT.

    The floor is reached one step after the last, so that the last step still moves.
    """

    def __init__(
        self,
        *,
        warmup: Annotated[
            float, "share of the steps that warm up (crammed BERT: a half, a triangle)", Range(0, 1)
        ] = 0.1,
        floor: Annotated[float, "share of the learning rate at the end", Range(0, 1)] = 0.0,
        power: Annotated[float, "1: linear; larger values fall faster at first", Range(above=0)] = 1.0,
    ) -> None:
        self.warmup = warmup
        self.floor = floor
        self.power = power

    def factor(self, step: int, steps: int) -> float:
        warmup = warmup_steps(self.warmup, steps)
        if step < warmup:
            return warmup_factor(step, warmup)
        remaining = max(0.0, 1 - (step - warmup) / max(1, steps - warmup))
        return float(self.floor + (1 - self.floor) * remaining**self.power)
