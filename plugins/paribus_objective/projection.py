"""Output projection: from the width of the hidden states to that of a factorized embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Cost, Load, Role, Shape


@final
class OutputProjection(nn.Module):
    """Linear map to the width of the embedding table; the identity, without weights, if both widths are equal.

    (…, D) -> (…, E).
    """

    roles: ClassVar[Mapping[str, Role]] = {"weight": "head"}

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        is_needed = shape.embedding_width != shape.width
        self.weight = nn.Parameter(torch.empty(shape.embedding_width, shape.width)) if is_needed else None

    def forward(self, h: Tensor) -> Tensor:
        return h if self.weight is None else functional.linear(h, self.weight)

    def cost(self, load: Load) -> Cost:
        return Cost() if self.weight is None else Cost(flops=2 * load.head_positions * self.weight.numel())
