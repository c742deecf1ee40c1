"""Two-layer feed-forward (`mlp`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import Context, Cost, FeedForward, Load, Range, Role, Shape, ShortConvolutions, State
from paribus_feedforward.activation import ACTIVATIONS, Activation
from paribus_feedforward.inner_width import inner_width

EXPAND = 4.0


@final
class MultiLayerPerceptron(FeedForward):
    """Two-layer feed-forward, outer(activation(inner(x))) (Vaswani et al. 2017).

    "Attention Is All You Need", with ReLU. With `kernel`, inner channels read neighbouring tokens before the
    activation: Canon D of "Physics of Language Models: Part 4.1" (Allen-Zhu 2025). (B, T, D) -> (B, T, F) ->
    (B, T, D).
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
        kernel: Annotated[
            int | None,
            "tokens in the window of a convolution that is added to the inner channels (Canon D: 4); null: none",
            Range(2, 1024),
        ] = None,
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.width = shape.width
        self.inner_width = inner_width(shape.width, expand, EXPAND, inner)
        self.inner = nn.Linear(self.width, self.inner_width, bias=bias)
        self.outer = nn.Linear(self.inner_width, self.width, bias=bias)
        self.convolutions: ShortConvolutions | None = None
        self.mixes_tokens = kernel is not None
        if kernel is not None:
            self.convolutions = ShortConvolutions({"inner": self.inner_width}, kernel, causal=shape.causal)

    def forward(self, x: Tensor, ctx: Context | None = None) -> tuple[Tensor, Tensor | None]:
        inner = self.inner(x)
        if self.convolutions is not None:
            assert ctx is not None, "expected the context of the tokens"
            inner = self.convolutions("inner", inner, ctx)
        return self.outer(self.activation(inner)), None

    def cost(self, load: Load) -> Cost:
        cost = Cost(flops=2 * 2 * load.queries * self.width * self.inner_width)
        return cost if self.convolutions is None else cost + self.convolutions.cost(load)

    def start(self, batch: int, like: Tensor) -> State:
        return {} if self.convolutions is None else self.convolutions.start(batch, like)
