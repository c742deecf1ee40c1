"""Depthwise separable convolution (`conv`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import (
    AtMost,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    DepthwiseConvolution,
    Load,
    Range,
    Role,
    Shape,
    State,
)


@final
class Convolution(Attention):
    """Depthwise separable convolution over nearby tokens (Wu et al. 2019).

    "Pay Less Attention with Lightweight and Dynamic Convolutions", without the softmax over weights. Each channel is a
    weighted sum of nearby tokens, with the same weights at every position; a linear map then mixes the channels.

    In causal stacks a token reads itself and the `kernel` - 1 tokens before it. Otherwise the window is centred; for an
    even `kernel` it has one more token on the left. Padding between two tokens does not count towards their distance.
    Decoding keeps the last `kernel` - 1 tokens.
    """

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
        "causal": True,
        "cross": False,
        "documents": True,
        "order": False,
        "residual": True,
        "weights": False,
        "decodes": True,
    }
    roles: ClassVar[Mapping[str, Role]] = {"pointwise.weight": "residual"}

    def __init__(
        self,
        shape: Shape,
        *,
        kernel: Annotated[
            int, "tokens in the window of the convolution", Range(2), AtMost("length", "a sequence has no more tokens")
        ] = 7,
        bias: Annotated[bool, "add a bias to both convolutions"] = True,
    ) -> None:
        super().__init__()
        self.depthwise = DepthwiseConvolution(shape.width, kernel, causal=shape.causal, bias=bias)
        self.pointwise = nn.Linear(shape.width, shape.width, bias=bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        mixed: Tensor = self.pointwise(self.depthwise(x, ctx))
        return mixed

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return self.depthwise.start(batch, like)

    def cost(self, load: Load) -> Cost:
        return self.depthwise.cost(load) + Cost(2 * load.queries * self.pointwise.weight.numel())
