"""The position `alibi`."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from paribus import Pair, Position, Shape, Traits


@final
class LinearBiases(Position):
    """Lowers a score by the distance, each head with a slope of its own: "Train Short, Test Long" (Press et al. 2022).

    Both ways the distance is |i - j|: an attention that is not causal sees as little far ahead as far back.
    """

    traits: ClassVar[Traits] = {"moments": ["bias"], "bias": "positions", "distances": True, "owner": "stack"}

    def __init__(self, shape: Shape) -> None:
        super().__init__()

    def bias(self, pair: Pair) -> Tensor:
        """(B|1, H, T, S)."""
        dtype = torch.promote_types(pair.dtype, torch.float32)
        distance = (pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)).abs()  # (B|1, T, S)
        lowered = torch.tensor(slopes(pair.heads), dtype=dtype, device=distance.device).neg()
        return lowered[:, None, None] * distance.unsqueeze(1).to(dtype)

    def reach(self) -> int | None:
        return None


def slopes(heads: int) -> list[float]:
    """2^(-8/h), 2^(-16/h) … for a power of two; else those of the power below, and every other one of the next."""
    power = 2 ** int(math.log2(heads))
    first = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2.0 ** (-8 * (head + 1) / (2 * power)) for head in range(0, 2 * power, 2)]
    return first + between[: heads - power]
