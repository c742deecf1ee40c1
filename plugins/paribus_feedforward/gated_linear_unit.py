"""Gated linear unit (`glu`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import Cost, FeedForward, Load, Range, Role, Shape
from paribus_feedforward.activation import ACTIVATIONS, Activation
from paribus_feedforward.inner_width import inner_width

EXPAND = 8 / 3  # three maps of this width have as many parameters as two maps of 4


@final
class GatedLinearUnit(FeedForward):
    """Gated linear unit, outer(activation(gate(x)) * inner(x)) (Shazeer 2020).

    "GLU Variants Improve Transformer". The activation names the variant: silu is SwiGLU, gelu GEGLU, relu ReGLU,
    sigmoid GLU. (B, T, D) -> (B, T, F) -> (B, T, D).
    """

    roles: ClassVar[Mapping[str, Role]] = {"gate.weight": "inner", "inner.weight": "inner", "outer.weight": "residual"}

    def __init__(
        self,
        shape: Shape,
        *,
        activation: Annotated[Activation, "activation of the gate; silu: SwiGLU, gelu: GEGLU, sigmoid: GLU"] = "silu",
        expand: Annotated[float | None, "inner width as a multiple of the model width", Range(above=0)] = EXPAND,
        inner: Annotated[int | None, "inner width; overrides `expand`", Range(1)] = None,
        bias: Annotated[bool, "add a bias to the three projections"] = False,
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.width = shape.width
        self.inner_width = inner_width(shape.width, expand, EXPAND, inner)
        self.gate = nn.Linear(self.width, self.inner_width, bias=bias)
        self.inner = nn.Linear(self.width, self.inner_width, bias=bias)
        self.outer = nn.Linear(self.inner_width, self.width, bias=bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.outer(self.activation(self.gate(x)) * self.inner(x)), None

    def cost(self, load: Load) -> Cost:
        return Cost(flops=3 * 2 * load.queries * self.width * self.inner_width)
