# position relative-progress | mistake: positions are divided by the largest position of the sequence, which is in the future of all tokens but the last | property: no access to later tokens: length and padding change the output; decoding differs from one pass
"""Sinusoids of the progress through a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import Position, PositionTraits, Range, Shape, hookimpl


@final
class RelativeProgress(Position):
    """Sinusoids of the share of the text before a token, from 0 to 1, so that longer texts have no new positions."""

    traits: ClassVar[PositionTraits] = {"hooks": ["embed"], "bias": "none", "owner": "stack"}

    def __init__(
        self,
        shape: Shape,
        *,
        turns: Annotated[float, "periods of the fastest sinusoid in a text", Range(above=0)] = 32.0,
    ) -> None:
        super().__init__()
        self.width, self.turns = shape.embedding_width, turns

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """(B, T, E), (B|1, T) -> (B, T, E)."""
        share = positions.double() / positions.amax(-1, keepdim=True).clamp(min=1)  # (B|1, T)
        channels = torch.arange(0, self.width, 2, dtype=torch.float64, device=x.device) / self.width
        angles = share.unsqueeze(-1) * 2 * torch.pi * self.turns ** (1 - channels)
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., : self.width]
        return x + waves.to(x.dtype)

    def position_limit(self) -> int | None:
        return None


@hookimpl
def position() -> Mapping[str, type[Position]]:
    return {"relative-progress": RelativeProgress}
