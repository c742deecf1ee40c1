"""Branches that start at nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Norm, Placement, Role, Shape, Sublayer, Traits


@final
class ReZero(Placement):
    """x + a f(x), with one learnt a for all sublayers of a layer, 0 at first, and no norm: "ReZero is All You Need"
    (Bachlechner et al. 2020).

    The spec's norm stands only where the embedding or an objective has one. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[Traits] = {"final": False}
    roles: ClassVar[Mapping[str, Role]] = {"scale": "bias"}

    def __init__(self, shape: Shape, norm: Callable[[], Norm]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for sublayer in sublayers.values():
            x = x + self.scale * sublayer(x)
        return x
