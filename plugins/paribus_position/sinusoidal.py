"""The position `sinusoidal`."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import Position, Range, Shape, Traits
from paribus_position.remembered import Remembered, stored


@final
class Sinusoidal(Position):
    """Adds sines and cosines of falling frequency: "Attention Is All You Need" (Vaswani et al. 2017), section 3.5.

    Column 2i is sin(p / base^(2i/D)) and column 2i+1 the cosine of the same, as in the paper and not in its code.
    """

    traits: ClassVar[Traits] = {"moments": ["embed"], "bias": "none", "owner": "stack"}

    def __init__(
        self,
        shape: Shape,
        *,
        base: Annotated[float, "the longest wavelength is 2 pi times this", Range(above=1)] = 10_000.0,
    ) -> None:
        super().__init__()
        self.width = shape.width
        self.base = base
        self._waves: Remembered[Tensor] = Remembered()

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """(B, T, D), (B|1, T) -> (B, T, D)."""
        return x + self._waves(positions, x.dtype, lambda: self.waves(positions, x.dtype))

    def waves(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """(B|1, T) -> (B|1, T, D)."""
        exponents = torch.arange(0, self.width, 2, dtype=torch.float64, device=positions.device) / self.width
        angles = positions.unsqueeze(-1) * self.base**-exponents  # (B|1, T, D/2)
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return stored(waves[..., : self.width].to(dtype))  # an odd width has no last cosine

    def reach(self) -> int | None:
        return None
