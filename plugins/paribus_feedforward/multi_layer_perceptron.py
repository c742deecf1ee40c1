"""Two-layer feed-forward (`mlp`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import Cost, FeedForward, Load, Range, Role, Shape
from paribus_feedforward.activation import ACTIVATIONS, Activation
from paribus_feedforward.inner_width import inner_width

EXPAND = 4.0


@final
class MultiLayerPerceptron(FeedForward):
    """Two-layer feed-forward, outer(activation(inner(x))) (Vaswani et al. 2017).

    "Attention Is All You Need", with ReLU. (B, T, D) -> (B, T, F) -> (B, T, D).
    """

    roles: ClassVar[Mapping[str, Role]] = {"inner.weight": "inner", "outer.weight": "residual"}

    def __init__(
        self,
        shape: Shape,
        *,
        activation: Annotated[Activation, "activation between the two maps; gelu is exact (BERT)"] = "gelu",
        expand: Annotated[float | None, "inner width as a multiple of the model width", Range(above=0)] = EXPAND,
        inner: Annotated[int | None, "inner width; overrides `expand`", Range(1)] = None,
        bias: Annotated[bool, "add a bias to the two projections"] = True,
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.width = shape.width
        self.inner_width = inner_width(shape.width, expand, EXPAND, inner)
        self.inner = nn.Linear(self.width, self.inner_width, bias=bias)
        self.outer = nn.Linear(self.inner_width, self.width, bias=bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.outer(self.activation(self.inner(x))), None

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * 2 * load.queries * self.width * self.inner_width)
