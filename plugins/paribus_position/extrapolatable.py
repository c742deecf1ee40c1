"""The position `xpos`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, NamedTuple, final

import torch
from torch import Tensor

from paribus import Position, Problem, Range, Shape, SpecError, Traits
from paribus_position.remembered import Remembered
from paribus_position.turning import Turns, turn, turns

_MOST: Final = 64.0  # the natural logarithm of the largest scale: float32 ends at 88


class Sides(NamedTuple):
    """The same angles, with decay for queries and its reciprocal for keys."""

    query: Turns
    key: Turns


@final
class Extrapolatable(Position):
    """Turns as RoPE does, and lets scores decay with distance: "A Length-Extrapolatable Transformer" (Sun et al. 2022).

    Of K columns, pair i is scaled by z_i^(p/span) in queries and z_i^(-p/span) in keys, z_i = (2i/K + gamma) /
    (1 + gamma), so that a score holds z_i^(distance/span). The positions count from the middle of `dims.length`, which
    cancels out and keeps both scales small; where one would still come near float32's end, some 26,000 rows from the
    middle, it grows no more. What is ahead would be raised and not lowered: only rows that see the past may have it.
    """

    traits: ClassVar[Traits] = {"moments": ["rotate"], "bias": "none", "owner": "stack", "sight": "past"}

    def __init__(
        self,
        shape: Shape,
        *,
        theta: Annotated[float, "the longest wavelength is 2 pi times this", Range(above=1)] = 10_000.0,
        gamma: Annotated[float, "the larger, the less any pair decays", Range(above=0)] = 0.4,
        span: Annotated[float, "rows over which a pair decays by its z", Range(above=0)] = 512.0,
    ) -> None:
        super().__init__()
        if shape.head_width % 2:
            what = f"columns are turned two by two, so the head width must be even, but is {shape.head_width}"
            raise SpecError(Problem(code="odd-rotation", path="position", what=what, valid="an even dims.head_width"))
        self.theta = theta
        self.gamma = gamma
        self.span = span
        self.middle = shape.length // 2
        self._tables: Remembered[Sides] = Remembered()

    def tables(self, positions: Tensor, width: int) -> Sides:
        """(B|1, T) -> (B|1, 1, T, K) each."""
        return self._tables(positions, width, lambda: self._sides(positions, width))

    def _sides(self, positions: Tensor, width: int) -> Sides:
        rows = positions.double().unsqueeze(1).unsqueeze(-1)  # (B|1, 1, T, 1)
        pairs = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width  # (K/2,)
        angles = rows * self.theta**-pairs
        powers = (rows - self.middle) / self.span * ((pairs + self.gamma) / (1 + self.gamma)).log()
        powers = powers.clamp(-_MOST, _MOST)
        cos, sin = angles.cos(), angles.sin()
        query, key = powers.exp(), powers.neg().exp()
        return Sides(turns(cos * query, sin * query), turns(cos * key, sin * key))

    def rotate(self, x: Tensor, tables: Sides, side: Literal["query", "key"]) -> Tensor:
        """(B, H, T, K) -> (B, H, T, K)."""
        return turn(x, tables.query if side == "query" else tables.key)

    def reach(self) -> int | None:
        return None
