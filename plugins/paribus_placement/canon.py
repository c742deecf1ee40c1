"""Canon layers (`canon`): short convolutions of what each sublayer reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import (
    Context,
    Cost,
    DepthwiseConvolution,
    Load,
    Norm,
    PlacementTraits,
    Range,
    Role,
    Shape,
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
    softmax attentions. The smear of modded-nanogpt is the case of `kernel: 2`. (B, T, D) -> (B, T, D).
    """

    roles: ClassVar[Mapping[str, Role]] = {
        "convolutions.attention.weight": "vector",
        "convolutions.cross.weight": "vector",
        "convolutions.feedforward.weight": "vector",
    }
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
        self.convolutions = nn.ModuleDict(
            {
                name: DepthwiseConvolution(
                    shape.width, kernel, causal=shape.causal, bias=False, state=f"inputs of {name}"
                )
                for name in shape.sublayers
            }
        )

    def begin(self, x: Tensor) -> Streams:
        return (x,)

    def advance(self, streams: Streams, sublayers: Mapping[str, Sublayer], ctx: Context) -> Streams:
        (x,) = streams
        for name, sublayer in sublayers.items():
            h = self.norms[name](x)
            x = x + sublayer(h + self.convolutions[name](h, ctx))
        return (x,)

    def end(self, streams: Streams) -> Tensor:
        return streams[-1]

    def empty_state(self, batch: int, like: Tensor) -> State:
        return {name: tensor for each in self._each() for name, tensor in each.start(batch, like).items()}

    def cost(self, load: Load) -> Cost:
        return sum((each.cost(load) for each in self._each()), Cost())

    def _each(self) -> list[DepthwiseConvolution]:
        return [each for each in self.convolutions.values() if isinstance(each, DepthwiseConvolution)]
