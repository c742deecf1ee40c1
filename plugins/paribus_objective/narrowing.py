"""Rows of the stream as wide as those of the embedding, which are narrower where it is factorised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Cost, Load, Role, Shape


@final
class Narrow(nn.Module):
    """Brings rows to the width at which they are scored; where they are of it already there is nothing to learn.

    (…, D) -> (…, E).
    """

    roles: ClassVar[Mapping[str, Role]] = {"weight": "head"}

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        needed = shape.embedding_width != shape.width
        self.weight = nn.Parameter(torch.empty(shape.embedding_width, shape.width)) if needed else None

    def forward(self, h: Tensor) -> Tensor:
        return h if self.weight is None else functional.linear(h, self.weight)

    def cost(self, load: Load) -> Cost:
        return Cost() if self.weight is None else Cost(flops=2 * load.head_positions * self.weight.numel())
