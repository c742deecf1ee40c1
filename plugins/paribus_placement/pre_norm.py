"""Norms before the sublayers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, final

from torch import Tensor, nn

from paribus import Norm, Placement, Shape, Sublayer, Traits


@final
class PreNorm(Placement):
    """x + f(norm(x)), and a norm after the last layer: "Language Models are Unsupervised Multitask Learners" (Radford
    et al. 2019), studied in "On Layer Normalization in the Transformer Architecture" (Xiong et al. 2020).

    (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[Traits] = {"final": True}

    def __init__(self, shape: Shape, norm: Callable[[], Norm]) -> None:
        super().__init__()
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            x = x + sublayer(self.norms[name](x))
        return x
