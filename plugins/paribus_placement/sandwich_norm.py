"""Sandwich norm (`sandwich`): norms before and after sublayers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import Norm, Placement, PlacementTraits, Shape, Sublayer


@final
class SandwichNorm(Placement):
    """Sandwich norm, x + norm(f(norm(x))) with a norm after the last layer (Ding et al. 2021).

    "CogView", and "Gemma 2" (Gemma Team 2024). Both norms are inside the branch. OLMo 2 (OLMo Team 2025) has the second
    one only. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True}

    def __init__(
        self,
        shape: Shape,
        norm: Callable[[], Norm],
        *,
        inputs: Annotated[bool, "normalise the inputs of sublayers too; false: x + norm(f(x)) (OLMo 2)"] = True,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers if inputs})
        self.behind = nn.ModuleDict({name: norm() for name in shape.sublayers})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            if self.inputs:
                x = x + self.behind[name](sublayer(self.norms[name](x)))
            else:
                x = x + self.behind[name](sublayer(x))
        return x
