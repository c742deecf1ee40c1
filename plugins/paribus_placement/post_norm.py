"""Norms behind the sublayers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, final

from torch import Tensor, nn

from paribus import Norm, Placement, Shape, Sublayer, Traits


@final
class PostNorm(Placement):
    """norm(x + f(x)), so that every layer already gives normed rows: "Attention Is All You Need" (Vaswani et al. 2017).

    (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[Traits] = {"final": False}

    def __init__(self, shape: Shape, norm: Callable[[], Norm]) -> None:
        super().__init__()
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            x = self.norms[name](x + sublayer(x))
        return x
