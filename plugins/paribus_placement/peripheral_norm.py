"""Peripheral norm (`peri`): norms before and after sublayers, and of the stack's input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, final

from torch import Tensor, nn

from paribus import Norm, Placement, PlacementTraits, Shape, Sublayer


@final
class PeripheralNorm(Placement):
    """Peripheral norm, x + norm(f(norm(x))) with a norm of the stack's input and output (Kim et al. 2025).

    "Peri-LN". It is `sandwich` plus an input norm in the first layer, so each layer needs its index: with shared
    layers, use `sandwich` and an embedding that is `normed`. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True, "needs": ["layer"]}

    def __init__(self, shape: Shape, norm: Callable[[], Norm]) -> None:
        super().__init__()
        self.entry = norm() if shape.layer == 0 else None
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})
        self.behind = nn.ModuleDict({name: norm() for name in shape.sublayers})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        if self.entry is not None:
            x = self.entry(x)
        for name, sublayer in sublayers.items():
            x = x + self.behind[name](sublayer(self.norms[name](x)))
        return x
