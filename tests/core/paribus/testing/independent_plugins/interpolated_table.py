"""Absolute positions between a few learned vectors (`interpolated-table`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import AtMost, Position, PositionTraits, Range, Role, Shape, hookimpl


@final
class InterpolatedTable(Position):
    """Absolute position embedding, interpolated between `knots` learned vectors, as images interpolate positions.

    "An Image is Worth 16x16 Words" (Dosovitskiy et al. 2021) interpolates a table for other resolutions. Here the first
    vector is that of position 0, the last that of the last position in training, and the others lie evenly between
    them; a position between two vectors is their weighted mean. Neighbours are alike from the start, and share what
    they learn. Positions outside, which only padding has, read the first or the last vector.
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["embed"], "bias": "none", "owner": "stack", "table": True}
    roles: ClassVar[Mapping[str, Role]] = {"table.weight": "embedding"}

    def __init__(
        self,
        shape: Shape,
        *,
        knots: Annotated[int, "learned vectors", Range(2), AtMost("length", "more would be between positions")] = 16,
    ) -> None:
        super().__init__()
        self.length, self.knots = shape.length, knots
        self.table = nn.Embedding(knots, shape.embedding_width)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """(B, T, E), (B|1, T) -> (B, T, E)."""
        known = positions.clamp(0, self.length - 1)
        # In integers: position p lies at p (knots - 1) / (length - 1) between the knots.
        scaled, step = known * (self.knots - 1), max(self.length - 1, 1)
        left = torch.div(scaled, step, rounding_mode="floor").clamp(max=self.knots - 2)
        share = ((scaled - left * step).to(torch.float64) / step).to(self.table.weight.dtype).unsqueeze(-1)
        return x + torch.lerp(self.table(left), self.table(left + 1), share)

    def position_limit(self) -> int:
        return self.length


@hookimpl
def position() -> Mapping[str, type[Position]]:
    return {"interpolated-table": InterpolatedTable}
