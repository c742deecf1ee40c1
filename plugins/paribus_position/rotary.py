"""Rotary position embedding (`rope`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, final

from torch import Tensor

from paribus import Position, PositionTraits, Problem, Range, Shape, SpecError
from paribus_position.position_cache import PositionCache
from paribus_position.rotary_scaling import Scaling, frequencies, temperature, validate_scaling
from paribus_position.rotation import RotationTables, rotate_pairs, rotation_tables


@final
class Rotary(Position):
    """Rotary position embedding, RoPE (Su et al. 2021).

    "RoFormer". Queries and keys are rotated by an angle that grows with their position. Channel i of a head is paired
    with channel i + R/2 (GPT-NeoX, Llama), where R is the rotated width, and rotated by p * theta^(-2i/R); channels
    from R on are unchanged. With `interleaved`, channels 2i and 2i + 1 are paired instead (RoFormer, GPT-J), which is
    the same apart from the order of channels.
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["rotate"], "bias": "none", "owner": "stack"}

    def __init__(
        self,
        shape: Shape,
        *,
        theta: Annotated[float, "base of the wavelengths; the longest is 2 pi * theta", Range(above=1)] = 10_000.0,
        fraction: Annotated[
            float, "fraction of each head's channels that is rotated, from the first channel", Range(above=0, high=1)
        ] = 1.0,
        interleaved: Annotated[bool, "rotate pairs of adjacent channels (GPT-J)"] = False,
        scaling: Scaling = Scaling(),
    ) -> None:
        super().__init__()
        validate_scaling(scaling)
        self.theta = theta
        self.fraction = fraction
        self.interleaved = interleaved
        self.scaling = scaling
        self.temperature = temperature(scaling)
        self._rotary_width(shape.head_width)
        self._tables: PositionCache[RotationTables] = PositionCache()

    def tables(self, positions: Tensor, width: int) -> RotationTables:
        """(B|1, T) -> (B|1, 1, T, R) each."""
        return self._tables(positions, width, lambda: self._angles(positions, width))

    def _angles(self, positions: Tensor, width: int) -> RotationTables:
        frequency = frequencies(self.theta, self._rotary_width(width), self.scaling, positions.device)
        angles = positions.unsqueeze(1).unsqueeze(-1) * frequency  # (B|1, 1, T, R/2)
        cos, sin = angles.cos(), angles.sin()
        if self.temperature != 1:
            cos, sin = cos * self.temperature, sin * self.temperature
        return rotation_tables(cos, sin, interleaved=self.interleaved)

    def rotate(self, x: Tensor, tables: RotationTables, side: Literal["query", "key"]) -> Tensor:
        """(B, H, T, K) -> (B, H, T, K)."""
        return rotate_pairs(x, tables, interleaved=self.interleaved)

    def _rotary_width(self, width: int) -> int:
        rotated = round(width * self.fraction, 3)  # 0.333333 * 6 is 2
        if rotated >= 2 and rotated % 2 == 0:
            return int(rotated)
        message = f"`fraction` * head width ({self.fraction:g} * {width}) must be an even number, "
        valid_fractions = [f"{even / width:g}" for even in range(2, width + 1, 2)]
        valid = ", ".join(valid_fractions) or "a head width of at least 2"
        raise SpecError(
            Problem(code="odd-rotated-width", path="position", message=f"{message}got {rotated:g}", valid=valid)
        )

    def position_limit(self) -> int | None:
        return None
