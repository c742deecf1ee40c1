# placement balanced-branch | mistake: `x.norm() / y.norm()` without `dim` is one ratio of the whole batch, not one for each token | property: no access to future tokens; independence of the batch, padding and length
"""Pre-norm with branches as long as the stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import Norm, Placement, PlacementTraits, Range, Shape, Sublayer, hookimpl


@final
class BalancedBranch(Placement):
    """x + share |x| / |y| y with y = f(norm(x)), so that a branch has a fixed share of the length of the stream."""

    traits: ClassVar[PlacementTraits] = {"final_norm": True}

    def __init__(
        self,
        shape: Shape,
        norm: Callable[[], Norm],
        *,
        share: Annotated[float, "length of a branch, in lengths of the stream", Range(above=0)] = 0.5,
    ) -> None:
        super().__init__()
        self.share = share
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        for name, sublayer in sublayers.items():
            y = sublayer(self.norms[name](x))
            x = x + self.share * x.norm() / (y.norm() + 1e-6) * y
        return x


@hookimpl
def placement() -> Mapping[str, type[Placement]]:
    return {"balanced-branch": BalancedBranch}
