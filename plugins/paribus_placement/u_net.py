"""U-net skips (`u-net`): later layers add the outputs of earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Context, Norm, PlacementTraits, Role, Shape, StreamPlacement, Streams, Sublayer


@final
class UNet(StreamPlacement):
    """Pre-norm with U-net skips: each layer of the second half adds an output of the first, in reverse order.

    modded-nanogpt (Jordan et al. 2024), after "U-Net" (Ronneberger et al. 2015). With L layers and n = L // 2, layer
    n + j reads x + w y, where y is the output of layer n - 1 - j and w is learned, starting at 1.
    (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True, "needs": ["layer"]}
    roles: ClassVar[Mapping[str, Role]] = {"skip": "gain"}

    def __init__(self, shape: Shape, norm: Callable[[], Norm]) -> None:
        super().__init__()
        assert shape.layer is not None, "validated: the trait `needs`"
        self.keeps = shape.layer < shape.layers // 2
        self.kept = shape.layer if self.keeps else max(0, shape.layers // 2 * 2 - shape.layer)  # before this layer
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})
        self.skip = nn.Parameter(torch.ones(())) if self.kept and not self.keeps else None

    def begin(self, x: Tensor) -> Streams:
        return (x,) * (self.kept + 1)

    def advance(self, streams: Streams, sublayers: Mapping[str, Sublayer], ctx: Context) -> Streams:
        *kept, x = streams
        if self.skip is not None:
            x = x + self.skip * kept.pop()
        for name, sublayer in sublayers.items():
            x = x + sublayer(self.norms[name](x))
        return (*kept, x, x) if self.keeps else (*kept, x)

    def end(self, streams: Streams) -> Tensor:
        return streams[-1]
