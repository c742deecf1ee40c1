"""Attention with linear biases (`alibi`)."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from paribus import ConstantTensor, Pair, Position, PositionTraits, Shape


@final
class LinearBiases(Position):
    """Attention with linear biases, ALiBi (Press et al. 2022).

    "Train Short, Test Long". It subtracts slope * |i - j| from each score, with one fixed slope for each head. In
    bidirectional stacks keys ahead are penalised like keys behind.
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "positions", "distance_bias": True, "owner": "stack"}

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.slopes = ConstantTensor(slopes(shape.heads), torch.float64)

    def bias(self, pair: Pair) -> Tensor:
        """(B|1, H, T, S)."""
        dtype = torch.promote_types(pair.dtype, torch.float32)
        distance = (pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)).abs()  # (B|1, T, S)
        return self.slopes.like(distance, dtype).neg()[:, None, None] * distance.unsqueeze(1).to(dtype)

    def position_limit(self) -> int | None:
        return None


def slopes(heads: int) -> list[float]:
    """Return 2^(-8/h), 2^(-16/h) … for a power of two; else the slopes of the power below and every other one of the
    next."""
    power = 2 ** int(math.log2(heads))
    of_power = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    interpolated = [2.0 ** (-8 * (head + 1) / (2 * power)) for head in range(0, 2 * power, 2)]
    return of_power + interpolated[: heads - power]
