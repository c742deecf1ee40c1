"""Scaled residual connections (`scaled-residual`), ConvS2S's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, final

from torch import Tensor

from paribus import Norm, Placement, PlacementTraits, Shape, Sublayer

HALF: Final = math.sqrt(0.5)


@final
class ScaledResidual(Placement):
    """Residual sums times √½, (x + f(x)) √½, and no norm (Gehring et al. 2017).

    "Convolutional Sequence to Sequence Learning", sections 3.3 and 3.5. The scale keeps the variance of a sum of two.
    Cross-attention reads the output of the attention within its residual connection: y = f(x), then y = (y + c(y)) √½,
    then (x + y) √½. The spec's norm is used only in embeddings and objectives. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": False}

    def __init__(self, shape: Shape, norm: Callable[[], Norm]) -> None:
        super().__init__()

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        y = sublayers["attention"](x)
        if "cross" in sublayers:
            y = (y + sublayers["cross"](y)) * HALF
        x = (x + y) * HALF
        if "feedforward" in sublayers:
            x = (x + sublayers["feedforward"](x)) * HALF
        return x
