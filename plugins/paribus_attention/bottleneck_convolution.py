"""Dilated convolution of fewer channels (`bottleneck-conv`), ByteNet's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import AtMost, Attention, AttentionTraits, Context, Cost, Load, Range, Role, Shape, State
from paribus_attention.token_convolution import CONVOLUTION_TRAITS, TokenConvolution


@final
class BottleneckConvolution(Attention):
    """Dilated convolution of fewer channels, between maps of each token by itself (Kalchbrenner et al. 2016).

    "Neural Machine Translation in Linear Time", figure 3 (left): a map of relu(x) to `inner` channels, a layer norm, a
    ReLU and a dilated convolution of these, the same two again, and a map back. With the placement `pre` and the norm
    `layernorm` this is a residual block of ByteNet. Its layers have the dilations 1, 2, 4, 8 and 16 in turn, which a
    list of these attentions sets.
    """

    traits: ClassVar[AttentionTraits] = CONVOLUTION_TRAITS
    roles: ClassVar[Mapping[str, Role]] = {"outer.weight": "residual", "before.weight": "gain", "after.weight": "gain"}

    def __init__(
        self,
        shape: Shape,
        *,
        kernel: Annotated[
            int, "tokens in the window of the convolution", Range(2), AtMost("length", "a sequence has no more tokens")
        ] = 3,
        inner: Annotated[int | None, "channels of the convolution; null: half of the width", Range(1)] = None,
        dilation: Annotated[
            int, "distance of adjacent tokens of the window", Range(1), AtMost("length", "no token is that far away")
        ] = 1,
        bias: Annotated[bool, "add a bias to the three maps"] = True,
    ) -> None:
        super().__init__()
        channels = inner or max(1, shape.width // 2)
        self.reduce = nn.Linear(shape.width, channels, bias=bias)
        self.before, self.after = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.convolution = TokenConvolution(
            kernel=kernel,
            dilation=dilation,
            causal=shape.causal,
            bias=bias,
            width=channels,
            out=channels,
            role="weight",
        )
        self.outer = nn.Linear(channels, shape.width, bias=bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        reduced = self.before(self.reduce(x.relu())).relu()
        y: Tensor = self.outer(self.after(self.convolution(reduced, ctx)).relu())
        return y

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return self.convolution.start(batch, length, like)

    def cost(self, load: Load) -> Cost:
        maps = self.reduce.weight.numel() + self.outer.weight.numel()
        return self.convolution.cost(load) + Cost(2 * load.queries * maps)
