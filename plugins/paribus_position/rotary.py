"""The position `rope`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor

from paribus import Position, Problem, Range, Shape, SpecError, Traits
from paribus_position.remembered import Remembered, stored


class Turns(NamedTuple):
    """Cosines and signed sines of all rows, computed once in float64 and kept for whatever is turned by them."""

    double: tuple[Tensor, Tensor]
    single: tuple[Tensor, Tensor]  # for float32, and for what is narrower


@final
class Rotary(Position):
    """Turns queries and keys by an angle that grows with their position: "RoFormer" (Su et al. 2021).

    Column i of a head is turned together with column i + R/2 (GPT-NeoX, Llama), where R is the part of the width that
    is turned, by p * theta^(-2i/R); columns from R on stay as they are.
    """

    traits: ClassVar[Traits] = {"moments": ["rotate"], "bias": "none", "owner": "stack"}

    def __init__(
        self,
        shape: Shape,
        *,
        theta: Annotated[float, "the longest wavelength is 2 pi times this", Range(above=1)] = 10_000.0,
        fraction: Annotated[
            float, "how much of each head is turned, from its first column", Range(above=0, high=1)
        ] = 1.0,
    ) -> None:
        super().__init__()
        self.theta = theta
        self.fraction = fraction
        self._turned(shape.head_width)
        self._tables: Remembered[Turns] = Remembered()

    def tables(self, positions: Tensor, width: int) -> Turns:
        """(B|1, T) -> (B|1, 1, T, R) each."""
        return self._tables(positions, width, lambda: self._angles(positions, width))

    def _angles(self, positions: Tensor, width: int) -> Turns:
        turned = self._turned(width)
        exponents = torch.arange(0, turned, 2, dtype=torch.float64, device=positions.device) / -turned
        angles = positions.unsqueeze(1).unsqueeze(-1) * self.theta**exponents  # (B|1, 1, T, R/2)
        cos, sin = angles.cos(), angles.sin()
        cos, sin = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
        return Turns((cos, sin), (stored(cos.float()), stored(sin.float())))

    def rotate(self, x: Tensor, tables: Turns, side: Literal["query", "key"]) -> Tensor:
        """(B, H, T, K) -> (B, H, T, K)."""
        cos, sin = tables.double if x.dtype == torch.float64 else tables.single
        columns, whole = cos.shape[-1], x.shape[-1]
        turned = x if columns == whole else x[..., :columns]
        turned = torch.addcmul(turned * cos, turned.roll(columns // 2, -1), sin).to(x.dtype)
        return turned if columns == whole else torch.cat([turned, x[..., columns:]], dim=-1)

    def _turned(self, width: int) -> int:
        turned = round(width * self.fraction, 3)  # 0.333333 of 6 is 2
        if turned >= 2 and turned % 2 == 0:
            return int(turned)
        what = f"`fraction` ({self.fraction:g}) of the head width ({width}) must be an even number of columns, "
        evens = [f"{even / width:g}" for even in range(2, width + 1, 2)]
        valid = ", ".join(evens) or "a head width of at least 2"
        raise SpecError(Problem(code="odd-rotation", path="position", what=f"{what}but is {turned:g}", valid=valid))

    def reach(self) -> int | None:
        return None
