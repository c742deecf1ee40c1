# placement stochastic-depth | mistake: branches are dropped by Python's `random`, which a trial neither seeds nor restores | property: the same seed gives the same model (training is reproducible and resumable); no global generator of Python
"""Stochastic depth."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import Norm, Placement, PlacementTraits, Range, Shape, Sublayer, hookimpl


@final
class StochasticDepth(Placement):
    """Pre-norm whose branches are dropped at random in training: "Deep Networks with Stochastic Depth"
    (Huang et al. 2016).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True, "stochastic": True}

    def __init__(
        self,
        shape: Shape,
        norm: Callable[[], Norm],
        *,
        rate: Annotated[float, "share of the steps without a branch", Range(0, below=1)] = 0.1,
    ) -> None:
        super().__init__()
        self.rate = rate
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        for name, sublayer in sublayers.items():
            y = sublayer(self.norms[name](x))
            if self.training:
                y = y * ((random.random() >= self.rate) / (1 - self.rate))
            x = x + y
        return x


@hookimpl
def placement() -> Mapping[str, type[Placement]]:
    return {"stochastic-depth": StochasticDepth}
