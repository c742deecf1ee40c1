"""Schedule that halves the learning rate at regular intervals (`halved`)."""

from __future__ import annotations

from typing import Annotated, final

from paribus import Range, Schedule
from paribus_optim.warmup import warmup_factor, warmup_steps


@final
class Halved(Schedule):
    """Constant learning rate, then halved at regular intervals (Luong et al. 2015).

    "Effective Approaches to Attention-based Neural Machine Translation" halves it after each epoch from the sixth of
    ten.
    """

    def __init__(
        self,
        *,
        warmup: Annotated[float, "share of the steps that warm up", Range(0, 1)] = 0.0,
        after: Annotated[float, "share of the steps before the first halving (Luong: 0.5)", Range(0, 1)] = 0.5,
        every: Annotated[float, "share of the steps between halvings", Range(above=0, high=1)] = 0.1,
    ) -> None:
        self.warmup = warmup
        self.after = after
        self.every = every

    def factor(self, step: int, steps: int) -> float:
        warmup = warmup_steps(self.warmup, steps)
        steps_since = step - max(1, warmup, warmup_steps(self.after, steps))
        halvings = 0 if steps_since < 0 else 1 + steps_since // max(1, warmup_steps(self.every, steps))
        return float(warmup_factor(step, warmup) * 0.5**halvings)
