"""Canon layers (`canon`): short convolutions of what each sublayer reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import (
    Context,
    Cost,
    Load,
    Norm,
    PlacementTraits,
    Range,
    Shape,
    ShortConvolutions,
    State,
    StreamPlacement,
    Streams,
    Sublayer,
)


@final
class Canon(StreamPlacement):
    """Pre-norm with Canon layers A and C: each sublayer reads h plus a short convolution of h (Allen-Zhu 2025).

    "Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon Layers". h is the normalised
    stream, and the convolution of each channel reads a token and the ones before it. Canon B is `scores.kernel` of
    softmax attentions, and Canon D is `kernel` of `mlp` and `glu`. With `kernel: 2`, a sublayer reads a h_t + b h_{t-1}
    in each channel: a token shift (RWKV), with one pair for all projections. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True, "mixes_tokens": True}

    def __init__(
        self,
        shape: Shape,
        norm: Callable[[], Norm],
        *,
        kernel: Annotated[int, "tokens in the window of each convolution", Range(2, 1024)] = 4,
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})
        widths = dict.fromkeys(shape.sublayers, shape.width)
        self.convolutions = ShortConvolutions(widths, kernel, causal=shape.causal)

    def begin(self, x: Tensor) -> Streams:
        return (x,)

    def advance(self, streams: Streams, sublayers: Mapping[str, Sublayer], ctx: Context) -> Streams:
        (x,) = streams
        for name, sublayer in sublayers.items():
            x = x + sublayer(self.convolutions(name, self.norms[name](x), ctx))
        return (x,)

    def end(self, streams: Streams) -> Tensor:
        return streams[-1]

    def empty_state(self, batch: int, like: Tensor) -> State:
        return self.convolutions.start(batch, like)

    def cost(self, load: Load) -> Cost:
        return self.convolutions.cost(load)
