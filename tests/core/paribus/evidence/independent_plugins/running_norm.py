# norm running-norm | mistake: the running mean square is updated by every forward pass in training and used in it, so outputs depend on the batches before | property: a component keeps no state between passes; training equals evaluation; independence of the batch
"""Norm with running statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import KeyedDraws, Norm, Range, Role, hookimpl


@final
class RunningNorm(Norm):
    """Channels divided by a running root mean square, in place of statistics of the batch: "PowerNorm"
    (Shen et al. 2020). (…, D) -> (…, D).
    """

    roles: ClassVar[Mapping[str, Role]] = {"weight": "gain"}

    def __init__(
        self, width: int, *, rate: Annotated[float, "share of the new mean square", Range(above=0, high=1)] = 0.1
    ) -> None:
        super().__init__()
        self.rate = rate
        self.weight = nn.Parameter(torch.ones(width))
        self.register_buffer("running", None)

    def prepare(self, keyed: KeyedDraws) -> None:
        self.running = torch.ones_like(self.weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.running is None:  # before `prepare`
            return x * self.weight
        if self.training:
            with torch.no_grad():
                square = x.square().flatten(0, -2).mean(0)
                self.running = torch.lerp(self.running, square.to(self.running.dtype), self.rate)
        return x * torch.rsqrt(self.running + 1e-6).to(x.dtype) * self.weight


@hookimpl
def norm() -> Mapping[str, type[Norm]]:
    return {"running-norm": RunningNorm}
