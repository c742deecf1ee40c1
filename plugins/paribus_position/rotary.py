"""Rotary position embedding (`rope`)."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, final

import torch
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
    the same apart from the order of channels. With `grid`, the first half of the pairs is rotated by the row of a patch
    and the second half by its column, with the frequencies of R/2 channels each; the token of the whole image, at
    position 0, is not rotated: axial RoPE of "Rotary Position Embedding for Vision Transformer" (Heo et al. 2024, whose
    `theta` is 100).
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
        grid: Annotated[
            bool, "rotate by rows and columns of a square of patches (ViT); `dims.length` is their number and 1"
        ] = False,
        scaling: Scaling = Scaling(),
    ) -> None:
        super().__init__()
        validate_scaling(scaling)
        self.theta = theta
        self.fraction = fraction
        self.interleaved = interleaved
        self.scaling = scaling
        self.temperature = temperature(scaling)
        self.across = patches_across(shape.length) if grid else None
        self._rotary_width(shape.head_width)
        self._tables: PositionCache[RotationTables] = PositionCache()

    def tables(self, positions: Tensor, width: int) -> RotationTables:
        """(B|1, T) -> (B|1, 1, T, R) each."""
        return self._tables(positions, width, lambda: self._angles(positions, width))

    def _angles(self, positions: Tensor, width: int) -> RotationTables:
        frequency = frequencies(self.theta, self._rotary_width(width), self.scaling, positions.device)
        angles = positions.unsqueeze(1).unsqueeze(-1) * frequency  # (B|1, 1, T, R/2)
        if self.across is not None:
            half = frequencies(self.theta, len(frequency), self.scaling, positions.device)
            patch = (positions - 1).clamp(min=0)
            axes = (torch.div(patch, self.across, rounding_mode="floor"), patch % self.across)
            angles = torch.cat([axis[:, None, :, None] * half for axis in axes], -1)
        cos, sin = angles.cos(), angles.sin()
        if self.temperature != 1:
            cos, sin = cos * self.temperature, sin * self.temperature
        return rotation_tables(cos, sin, interleaved=self.interleaved)

    def rotate(self, x: Tensor, tables: RotationTables, side: Literal["query", "key"]) -> Tensor:
        """(B, H, T, K) -> (B, H, T, K)."""
        return rotate_pairs(x, tables, interleaved=self.interleaved)

    def _rotary_width(self, width: int) -> int:
        rotated = round(width * self.fraction, 3)  # 0.333333 * 6 is 2
        step, multiple = (2, "an even number") if self.across is None else (4, "divisible by 4 with `grid`")
        if rotated >= step and rotated % step == 0:
            return int(rotated)
        message = f"`fraction` * head width ({self.fraction:g} * {width}) must be {multiple}, "
        valid_fractions = [f"{columns / width:g}" for columns in range(step, width + 1, step)]
        valid = ", ".join(valid_fractions) or f"a head width of at least {step}"
        raise SpecError(
            Problem(code="odd-rotated-width", path="position", message=f"{message}got {rotated:g}", valid=valid)
        )

    def position_limit(self) -> int | None:
        return None


def patches_across(length: int) -> int:
    """Return the patches in a row of a square image with `length` tokens, of which the first is for the whole image."""
    across = math.isqrt(length - 1)
    if across < 1 or 1 + across**2 != length:
        below, above = (1 + side**2 for side in (max(1, across), max(2, across + 1)))
        raise ValueError(
            f"expected `dims.length` of 1 + n x n tokens for `grid`, got {length}; valid: {below}, {above}"
        )
    return across
