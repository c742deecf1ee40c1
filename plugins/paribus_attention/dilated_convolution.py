"""Full convolution with a dilation that grows from layer to layer (`dilated-conv`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from torch import Tensor

from paribus import AtMost, Attention, AttentionTraits, Context, Cost, Load, Range, Shape, State
from paribus_attention.token_convolution import CONVOLUTION_TRAITS, convolution_of, dilation_of


@final
class DilatedConvolution(Attention):
    """Full convolution with a dilation that grows from layer to layer (Kalchbrenner et al. 2016).

    "Neural Machine Translation in Linear Time", "WaveNet" (van den Oord et al. 2016). In layer l, counted from 0, the
    tokens of a window are `growth`^l apart. With a growth of `kernel`, a causal stack of log_k(n) layers connects n
    tokens. After `block` layers the dilation is 1 again.

    Everything else is as in `full-conv`.
    """

    traits: ClassVar[AttentionTraits] = {**CONVOLUTION_TRAITS, "needs": ["layer"]}

    def __init__(
        self,
        shape: Shape,
        *,
        kernel: Annotated[
            int, "tokens in the window of the convolution", Range(2), AtMost("length", "a sequence has no more tokens")
        ] = 3,
        growth: Annotated[
            int | None, "factor of the dilation from one layer to the next; null: `kernel`", Range(2)
        ] = None,
        block: Annotated[
            int | None,
            "layers after which the dilation is 1 again; null: before it would be dims.length or more",
            Range(1),
            AtMost("layers", "the stack has no more layers"),
        ] = None,
        gate: Annotated[bool, "gated linear unit: a * sigmoid(b) of twice the channels"] = False,
        bias: Annotated[bool, "add a bias"] = True,
    ) -> None:
        super().__init__()
        self.shape = shape
        dilation = dilation_of(shape, growth or kernel, block)
        self.convolution, self.activation = convolution_of(shape, kernel, dilation, gate=gate, bias=bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        y: Tensor = self.activation(self.convolution(x, ctx))
        return y

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return self.convolution.start(batch, length, like)

    def cost(self, load: Load) -> Cost:
        return self.convolution.cost(load)
