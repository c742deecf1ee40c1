"""ReZero (`rezero`): no norm, and branches that start at zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Norm, Placement, PlacementTraits, Role, Shape, Sublayer


@final
class ReZero(Placement):
    """ReZero, x + a f(x) with one learned a for each layer, initially 0, and no norm (Bachlechner et al. 2020).

    "ReZero is All You Need". The spec's norm is used only in embeddings and objectives. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": False}
    roles: ClassVar[Mapping[str, Role]] = {"scale": "bias"}

    def __init__(self, shape: Shape, norm: Callable[[], Norm]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for sublayer in sublayers.values():
            x = x + self.scale * sublayer(x)
        return x
