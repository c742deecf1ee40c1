"""Post-norm with a stream that outweighs its branches, the more so the deeper the stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple, final

from torch import Tensor, nn

from paribus import Norm, Placement, Role, Shape, Sublayer, Traits


@final
class DeepNorm(Placement):
    """norm(alpha x + f(x)), with values, outputs and feed-forwards that start beta times as large: "DeepNet: Scaling
    Transformers to 1,000 Layers" (Wang et al. 2022).

    Both follow from the depth of the stack and, of an encoder that a decoder attends to, from the decoder's as well.
    What beta multiplies is the spec's initialisation; the paper's is `xavier`. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[Traits] = {"final": False}

    def __init__(self, shape: Shape, norm: Callable[[], Norm]) -> None:
        super().__init__()
        self.alpha, self.beta = weights(shape)
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            x = self.norms[name](self.alpha * x + sublayer(x))
        return x

    def gain(self, role: Role) -> float:
        return self.beta if role in ("value", "residual", "inner") else 1.0


class Weights(NamedTuple):
    """What the stream is multiplied by, and what the first values of its branches are."""

    alpha: float
    beta: float


def weights(shape: Shape) -> Weights:
    """The table of the paper: one stack by itself, a decoder that attends to an encoder, and that encoder."""
    if "cross" in shape.sublayers:
        return Weights((3 * shape.layers) ** 0.25, (12 * shape.layers) ** -0.25)
    if shape.cross_layers:
        both = (shape.layers**4 * shape.cross_layers) ** (1 / 16)
        return Weights(0.81 * both, 0.87 / both)
    return Weights((2 * shape.layers) ** 0.25, (8 * shape.layers) ** -0.25)
