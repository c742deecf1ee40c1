# position counted-rotary | mistake: angles are those of 0, 1, 2 … for every call instead of those of the positions given, so each decoding step starts at 0 | property: decoding in chunks equals one pass; positions given by the layout are used
"""Rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from torch import Tensor

from paribus import Position, PositionTraits, Range, Shape, hookimpl


@final
class CountedRotary(Position):
    """Rotary position embedding (Su et al. 2021), with the halves of a head as pairs."""

    traits: ClassVar[PositionTraits] = {"hooks": ["rotate"], "bias": "none", "owner": "stack"}

    def __init__(
        self, shape: Shape, *, theta: Annotated[float, "base of the wavelengths", Range(above=1)] = 10_000.0
    ) -> None:
        super().__init__()
        if shape.head_width % 2:
            raise ValueError(f"expected an even head width, got {shape.head_width}")
        self.theta = theta

    def tables(self, positions: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """(B|1, T) -> (T, K/2) each."""
        steps = torch.arange(positions.shape[-1], dtype=torch.float64, device=positions.device)
        exponents = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width
        angles = steps.unsqueeze(-1) * self.theta**-exponents
        return angles.cos(), angles.sin()

    def rotate(self, x: Tensor, tables: Any, side: Literal["query", "key"]) -> Tensor:
        """(B, H, T, K) -> (B, H, T, K)."""
        cos, sin = (table.to(x.dtype) for table in tables)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def position_limit(self) -> int | None:
        return None


@hookimpl
def position() -> Mapping[str, type[Position]]:
    return {"counted-rotary": CountedRotary}
