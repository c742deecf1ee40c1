"""Pre-norm that skips branches at random in training (`stochastic-depth`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn
from torch.nn import functional

from paribus import Norms, Placement, PlacementTraits, Range, Shape, Sublayer, hookimpl


@final
class StochasticDepth(Placement):
    """Stochastic depth, pre-norm whose branches are skipped at random in training (Huang et al. 2016).

    "Deep Networks with Stochastic Depth". Each sequence of a batch skips each branch by a draw of its own, for all of
    its tokens; branches that are kept are divided by the probability of that, so that evaluation scales nothing. The
    probability of a skip grows linearly from layer to layer, up to `rate` in the last. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True, "needs": ["layer"], "stochastic": True}

    def __init__(
        self,
        shape: Shape,
        norm: Norms,
        *,
        rate: Annotated[float, "probability that the last layer skips a branch", Range(0, below=1)] = 0.1,
    ) -> None:
        super().__init__()
        assert shape.layer is not None, "validated: each layer has its own placement"
        self.rate = rate * (shape.layer + 1) / shape.layers
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            x = x + self.skip(sublayer(self.norms[name](x)))
        return x

    def skip(self, y: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        if not self.training or self.rate == 0:
            return y
        return y * functional.dropout(y.new_ones(y.shape[0], 1, 1), self.rate)


@hookimpl
def placement() -> Mapping[str, type[Placement]]:
    return {"stochastic-depth": StochasticDepth}
