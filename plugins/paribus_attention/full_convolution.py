"""Full convolution (`full-conv`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from torch import Tensor

from paribus import AtMost, Attention, AttentionTraits, Context, Cost, Load, Range, Shape, State
from paribus_attention.token_convolution import CONVOLUTION_TRAITS, convolution_of


@final
class FullConvolution(Attention):
    """Full convolution over nearby tokens, from every channel to every channel (Collobert et al. 2011).

    "Natural Language Processing (Almost) from Scratch"; the convolutional layer of table 1 of "Attention Is All You
    Need", O(k n d²). In causal stacks a token reads itself and earlier tokens; otherwise the window is centred, with
    one more token on the left if `kernel` is even. With `gate` it makes 2 D channels, a and b, and returns
    a * sigmoid(b), as in "Convolutional Sequence to Sequence Learning" (Gehring et al. 2017).

    For another dilation in each layer, use `dilated-conv`, or a list of these.
    """

    traits: ClassVar[AttentionTraits] = CONVOLUTION_TRAITS

    def __init__(
        self,
        shape: Shape,
        *,
        kernel: Annotated[
            int, "tokens in the window of the convolution", Range(2), AtMost("length", "a sequence has no more tokens")
        ] = 3,
        dilation: Annotated[
            int, "distance of adjacent tokens of the window", Range(1), AtMost("length", "no token is that far away")
        ] = 1,
        gate: Annotated[bool, "gated linear unit: a * sigmoid(b) of twice the channels"] = False,
        bias: Annotated[bool, "add a bias"] = True,
    ) -> None:
        super().__init__()
        self.convolution, self.activation = convolution_of(shape, kernel, dilation, gate=gate, bias=bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        y: Tensor = self.activation(self.convolution(x, ctx))
        return y

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return self.convolution.start(batch, length, like)

    def cost(self, load: Load) -> Cost:
        return self.convolution.cost(load)
