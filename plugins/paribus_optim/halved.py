"""A learning rate that is halved again and again towards the end."""

from __future__ import annotations

from typing import Annotated, final

from paribus import Range, Schedule
from paribus_optim.warmup import warmed, warmup_steps


@final
class Halved(Schedule):
    """1 for a while, then half as much at even distances: "Effective Approaches to Attention-based Neural Machine
    Translation" (Luong et al. 2015), where it halves after each epoch from the sixth of ten on."""

    def __init__(
        self,
        *,
        warmup: Annotated[float, "share of the steps that warm up", Range(0, 1)] = 0.0,
        after: Annotated[float, "share of the steps before it is halved at all (Luong: a half)", Range(0, 1)] = 0.5,
        every: Annotated[float, "share of the steps from one halving to the next", Range(above=0, high=1)] = 0.1,
    ) -> None:
        self.warmup = warmup
        self.after = after
        self.every = every

    def factor(self, step: int, steps: int) -> float:
        warmup = warmup_steps(self.warmup, steps)
        since = step - max(1, warmup, warmup_steps(self.after, steps))
        times = 0 if since < 0 else 1 + since // max(1, warmup_steps(self.every, steps))
        return float(warmed(step, warmup) * 0.5**times)
