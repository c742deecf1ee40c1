"""Gated root mean square normalisation (`gated`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Cost, Load, Norm, Range, Role


@final
class GatedNorm(Norm):
    """Gated root mean square normalisation, y sigmoid(up(silu(down(y)))) with y = rmsnorm(x) (Qwen team 2026).

    "A Unified View of Attention and Residual Sinks". The gate is a map of low rank of the normalised vector: a vector
    can be made smaller without a channel of large values, which is divided by. (…, D) -> (…, R) -> (…, D).
    """

    roles: ClassVar[Mapping[str, Role]] = {"weight": "gain", "down.weight": "weight", "up.weight": "weight"}

    def __init__(
        self,
        width: int,
        *,
        rank: Annotated[int, "width between the two maps of the gate, R", Range(1)] = 16,
        eps: Annotated[float, "added to the mean square (Llama: 1e-5)", Range(above=0)] = 1e-6,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        gate: Tensor = self.up(functional.silu(self.down(y))).sigmoid()
        return y * gate.to(y.dtype)

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * 2 * load.queries * self.down.weight.numel())
