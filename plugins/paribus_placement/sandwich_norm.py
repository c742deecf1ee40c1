"""Sandwich norm (`sandwich`): norms before and after sublayers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, final

from torch import Tensor, nn

from paribus import Norm, Placement, PlacementTraits, Shape, Sublayer


@final
class SandwichNorm(Placement):
    """Sandwich norm, x + norm(f(norm(x))) with a norm after the last layer (Ding et al. 2021).

    "CogView", and "Gemma 2" (Gemma Team 2024). Both norms are inside the branch. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True}

    def __init__(self, shape: Shape, norm: Callable[[], Norm]) -> None:
        super().__init__()
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})
        self.behind = nn.ModuleDict({name: norm() for name in shape.sublayers})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            x = x + self.behind[name](sublayer(self.norms[name](x)))
        return x
