"""DeepNorm (`deepnorm`): post-norm with a scaled residual stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple, final

from torch import Tensor, nn

from paribus import Norm, Placement, PlacementTraits, Role, Shape, Sublayer


@final
class DeepNorm(Placement):
    """DeepNorm, norm(alpha x + f(x)) with down-scaled branches (Wang et al. 2022).

    "DeepNet: Scaling Transformers to 1,000 Layers". Values, outputs and feed-forwards are initialised beta times as
    large. alpha and beta depend on the depth of the stack and, for an encoder with a decoder, on the decoder's depth.
    beta scales the spec's initialisation; the paper's is `xavier`. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": False}

    def __init__(self, shape: Shape, norm: Callable[[], Norm]) -> None:
        super().__init__()
        self.alpha, self.beta = depth_weights(shape)
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            x = self.norms[name](self.alpha * x + sublayer(x))
        return x

    def gain(self, role: Role) -> float:
        return self.beta if role in ("value", "residual", "inner") else 1.0


class DepthWeights(NamedTuple):
    """Scale of the residual stream, and scale of the branches' initial weights."""

    alpha: float
    beta: float


def depth_weights(shape: Shape) -> DepthWeights:
    """Return the paper's weights for a single stack, a decoder with cross-attention, or its encoder."""
    if "cross" in shape.sublayers:
        return DepthWeights((3 * shape.layers) ** 0.25, (12 * shape.layers) ** -0.25)
    if shape.cross_layers:
        depth = (shape.layers**4 * shape.cross_layers) ** (1 / 16)
        return DepthWeights(0.81 * depth, 0.87 / depth)
    return DepthWeights((2 * shape.layers) ** 0.25, (8 * shape.layers) ** -0.25)
