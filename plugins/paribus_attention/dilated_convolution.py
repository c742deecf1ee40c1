"""Full convolution with a dilation that grows from layer to layer (`dilated-conv`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from torch import Tensor

from paribus import AtMost, Attention, AttentionTraits, Context, Cost, Load, Range, Shape, State
from paribus_attention.token_convolution import CONVOLUTION_TRAITS, convolution_of


@final
class DilatedConvolution(Attention):
    """Full convolution with a dilation that grows from layer to layer (Kalchbrenner et al. 2016).

    "Neural Machine Translation in Linear Time", "WaveNet" (van den Oord et al. 2016). In layer l, counted from 0, the
    tokens of a window are `growth`^l apart; before this is `dims.length` or more, it is 1 again. With a growth of
    `kernel`, a causal stack of log_k(n) layers connects n tokens. Everything else is as in `full-conv`.

    Blocks of a few layers, as in these papers, are a list of `full-conv` with their dilations.
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
        gate: Annotated[bool, "gated linear unit: a * sigmoid(b) of twice the channels"] = False,
        bias: Annotated[bool, "add a bias"] = True,
    ) -> None:
        super().__init__()
        self.shape = shape
        dilation = dilation_of(shape, growth or kernel)
        self.convolution, self.activation = convolution_of(shape, kernel, dilation, gate=gate, bias=bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        y: Tensor = self.activation(self.convolution(x, ctx))
        return y

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return self.convolution.start(batch, length, like)

    def cost(self, load: Load) -> Cost:
        return self.convolution.cost(load)


def dilation_of(shape: Shape, growth: int) -> int:
    """Return the dilation of a layer: 1 in the first, and then `growth` times that of the layer before.

    It is 1 again before it would be the length of a sequence or more, where no token is that far away.
    """
    assert shape.layer is not None, "validation rejects layers that share parameters"
    layers = 1
    while growth**layers < shape.length:
        layers += 1
    return int(growth ** (shape.layer % layers))
