"""REX schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, final

from paribus import Range, Schedule, hookimpl


@final
class ReflectedExponential(Schedule):
    """Reflected exponential decay after a warm-up: "REX: Revisiting Budgeted Training with an Improved Schedule" (Chen
    et al. 2022).

    After a share z of the other steps, the factor is (1 - z) / (1 - β z): linear for β of 0, late for one near 1. The
    floor is reached one step after the last, so that the last step still moves.
    """

    def __init__(
        self,
        *,
        warmup: Annotated[float, "share of the steps that warm up", Range(0, 1)] = 0.1,
        beta: Annotated[float, "0: linear; larger values fall later (REX: 0.5)", Range(0, below=1)] = 0.5,
        floor: Annotated[float, "share of the learning rate at the end", Range(0, 1)] = 0.0,
    ) -> None:
        self.warmup = warmup
        self.beta = beta
        self.floor = floor

    def factor(self, step: int, steps: int) -> float:
        warmup = round(self.warmup * steps)
        if step < warmup:
            return (step + 1) / warmup
        share = min(1.0, (step - warmup) / max(1, steps - warmup))
        return self.floor + (1 - self.floor) * (1 - share) / (1 - self.beta * share)


@hookimpl
def schedule() -> Mapping[str, type[Schedule]]:
    return {"rex": ReflectedExponential}
