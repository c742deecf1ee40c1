"""Pre-norm whose layers read the embeddings again (`x0`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Context, Norm, PlacementTraits, Role, Shape, StreamPlacement, Streams, Sublayer


@final
class EmbeddingResidual(StreamPlacement):
    """Pre-norm with x0 scalars: before each layer x becomes a x + b x0, where x0 is the input of the first layer.

    modded-nanogpt (Jordan et al. 2024), nanochat. a and b are learned for each layer; a starts at 1. The parameters are
    the differences to these starts. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True}
    roles: ClassVar[Mapping[str, Role]] = {"stream": "bias", "embedding": "bias"}

    def __init__(
        self,
        shape: Shape,
        norm: Callable[[], Norm],
        *,
        start: Annotated[float, "initial b (nanochat: 0.1)"] = 0.1,
    ) -> None:
        super().__init__()
        self.start = start
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})
        self.stream = nn.Parameter(torch.zeros(()))
        self.embedding = nn.Parameter(torch.zeros(()))

    def begin(self, x: Tensor) -> Streams:
        return x, x

    def advance(self, streams: Streams, sublayers: Mapping[str, Sublayer], ctx: Context) -> Streams:
        x0, x = streams
        x = (1 + self.stream) * x + (self.start + self.embedding) * x0
        for name, sublayer in sublayers.items():
            x = x + sublayer(self.norms[name](x))
        return x0, x

    def end(self, streams: Streams) -> Tensor:
        return streams[-1]
