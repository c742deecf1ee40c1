"""Adaptive initialisation of post-norm (`admin`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Norms, Placement, PlacementTraits, Range, Role, Shape, Sublayer, hookimpl


@final
class Admin(Placement):
    """Admin, post-norm with a learned weight of the stream, norm(omega x + f(x)) (Liu et al. 2020).

    "Understanding the Difficulty of Training Transformers". omega has a value for each channel and branch. Branch i of
    the stack, counted from 0, starts at √(1 + i variance): the paper measures the variance of each branch in a first
    pass, and here it is the same for all. omega is learned as a multiple of this value. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": False, "needs": ["layer"]}
    roles: ClassVar[Mapping[str, Role]] = {
        "omegas.attention": "gain",
        "omegas.cross": "gain",
        "omegas.feedforward": "gain",
    }

    def __init__(
        self,
        shape: Shape,
        norm: Norms,
        *,
        variance: Annotated[float, "variance of the output of a branch", Range(above=0)] = 1.0,
    ) -> None:
        super().__init__()
        assert shape.layer is not None, "validated: each layer has its own placement"
        names = shape.sublayers
        self.norms = nn.ModuleDict({name: norm() for name in names})
        self.omegas = nn.ParameterDict({name: nn.Parameter(torch.ones(shape.width)) for name in names})
        first = shape.layer * len(names)
        self.starts = {name: math.sqrt(1 + variance * (first + index)) for index, name in enumerate(names)}

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            x = self.norms[name](self.starts[name] * self.omegas[name] * x + sublayer(x))
        return x


@hookimpl
def placement() -> Mapping[str, type[Placement]]:
    return {"admin": Admin}
