"""A norm by a learned power mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Norm, Range, Role


@final
class PowerNorm(Norm):
    """Division by the power mean of the magnitudes, whose exponent is learned; with exponent 2 it is RMSNorm."""

    roles: ClassVar[Mapping[str, Role]] = {"weight": "gain", "power": "gain"}

    def __init__(
        self,
        width: int,
        *,
        start: Annotated[float, "initial exponent", Range(0.5, high=8)] = 2.5,
        eps: Annotated[float, "added to the squared magnitudes", Range(above=0)] = 1e-5,
    ) -> None:
        super().__init__()
        self.start, self.eps = start, eps
        self.weight = nn.Parameter(torch.ones(width))
        self.power = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        power = (self.start * self.power).clamp(min=0.25)
        logs = (x.square() + self.eps).log() * (power / 2)  # log |x|^p
        mean = (logs.logsumexp(-1, keepdim=True) - torch.tensor(float(x.shape[-1]), dtype=x.dtype).log()) / power
        return (x * (-mean).exp() * self.weight).to(x.dtype)
