"""Norms all around: of what enters the stack, before and behind each sublayer, and of what leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, final

from torch import Tensor, nn

from paribus import Norm, Placement, Shape, Sublayer, Traits


@final
class PeripheralNorm(Placement):
    """x + norm(f(norm(x))), of rows that were normed as they entered the stack, and a norm after the last layer:
    "Peri-LN" (Kim et al. 2025).

    Within a layer it is `sandwich`, tensor by tensor; it differs by the norm of what enters, which the first layer has.
    That is why it must know which layer it is: where layers share their parameters, `sandwich` with an embedding that
    is `normed` comes to the same. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[Traits] = {"final": True, "needs": ["layer"]}

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
