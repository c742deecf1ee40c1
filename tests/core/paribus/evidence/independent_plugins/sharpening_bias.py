# position sharpening-bias | mistake: the trait `distance_bias` was copied from ALiBi, but the bias depends on the query's position as well | property: the trait `distance_bias` (kernels that rely on it disagree with the reference)
"""Linear biases that later queries feel less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import ConstantTensor, Pair, Position, PositionTraits, Range, Shape, hookimpl


@final
class SharpeningBias(Position):
    """ALiBi (Press et al. 2022) with slopes that fall with the position of the query, so that it sees further."""

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "positions", "distance_bias": True, "owner": "stack"}

    def __init__(
        self,
        shape: Shape,
        *,
        half: Annotated[float, "position at which slopes are half as steep", Range(above=0)] = 32.0,
    ) -> None:
        super().__init__()
        self.half = half
        self.slopes = ConstantTensor(
            [2.0 ** (-8 * (head + 1) / shape.heads) for head in range(shape.heads)], torch.float64
        )

    def bias(self, pair: Pair) -> Tensor:
        """(B|1, H, T, S)."""
        dtype = torch.promote_types(pair.dtype, torch.float32)
        distance = (pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)).abs().to(dtype)  # (B|1, T, S)
        flatness = 1 + pair.q_positions.clamp(min=0).to(dtype) / self.half  # (B|1, T)
        slopes = self.slopes.like(distance, dtype)[:, None, None]
        return -slopes * (distance / flatness.unsqueeze(-1)).unsqueeze(1)

    def position_limit(self) -> int | None:
        return None


@hookimpl
def position() -> Mapping[str, type[Position]]:
    return {"sharpening-bias": SharpeningBias}
