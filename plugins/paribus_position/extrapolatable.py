"""Extrapolatable position embedding (`xpos`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, NamedTuple, final

import torch
from torch import Tensor

from paribus import Position, PositionTraits, Problem, Range, Shape, SpecError
from paribus_position.position_cache import PositionCache
from paribus_position.rotation import RotationTables, rotate_pairs, rotation_tables

_MAX_POWER: Final = 64.0  # natural logarithm of the largest scale; float32 overflows at 88


class QueryKeyTables(NamedTuple):
    """Rotation tables of queries and keys: the same angles, with decay for queries and its reciprocal for keys."""

    query: RotationTables
    key: RotationTables


@final
class Extrapolatable(Position):
    """Extrapolatable position embedding, rotary with decay (Sun et al. 2022).

    "A Length-Extrapolatable Transformer". Of K channels, pair i is scaled by z_i^(p/span) in queries and z_i^(-p/span)
    in keys, z_i = (2i/K + gamma) / (1 + gamma), so a score contains z_i^(distance/span). Positions are counted from the
    middle of `dims.length`, which cancels out and keeps both scales small. Scales are clamped below float32's limit,
    reached some 26,000 positions from the middle. Keys ahead of the query would be raised, so the stack must be causal.
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["rotate"], "bias": "none", "owner": "stack", "visibility": "past"}

    def __init__(
        self,
        shape: Shape,
        *,
        theta: Annotated[float, "base of the wavelengths; the longest is 2 pi * theta", Range(above=1)] = 10_000.0,
        gamma: Annotated[float, "larger values decay less", Range(above=0)] = 0.4,
        span: Annotated[float, "positions over which pair i decays by z_i", Range(above=0)] = 512.0,
    ) -> None:
        super().__init__()
        if shape.head_width % 2:
            message = f"rotation needs an even head width, got {shape.head_width}"
            raise SpecError(
                Problem(code="odd-rotated-width", path="position", message=message, valid="an even dims.head_width")
            )
        self.theta = theta
        self.gamma = gamma
        self.span = span
        self.middle = shape.length // 2
        self._tables: PositionCache[QueryKeyTables] = PositionCache()

    def tables(self, positions: Tensor, width: int) -> QueryKeyTables:
        """(B|1, T) -> (B|1, 1, T, K) each."""
        return self._tables(positions, width, lambda: self._sides(positions, width))

    def _sides(self, positions: Tensor, width: int) -> QueryKeyTables:
        positions_by_token = positions.double().unsqueeze(1).unsqueeze(-1)  # (B|1, 1, T, 1)
        pairs = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width  # (K/2,)
        angles = positions_by_token * self.theta**-pairs
        powers = (positions_by_token - self.middle) / self.span * ((pairs + self.gamma) / (1 + self.gamma)).log()
        powers = powers.clamp(-_MAX_POWER, _MAX_POWER)
        cos, sin = angles.cos(), angles.sin()
        query, key = powers.exp(), powers.neg().exp()
        return QueryKeyTables(rotation_tables(cos * query, sin * query), rotation_tables(cos * key, sin * key))

    def rotate(self, x: Tensor, tables: QueryKeyTables, side: Literal["query", "key"]) -> Tensor:
        """(B, H, T, K) -> (B, H, T, K)."""
        return rotate_pairs(x, tables.query if side == "query" else tables.key)

    def position_limit(self) -> int | None:
        return None
