"""Linear biases whose slopes depend on the query (`query-slopes`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import ConstantTensor, Cost, Load, Pair, Position, PositionTraits, Range, Role, Shape, hookimpl


@final
class QuerySlopes(Position):
    """Linear biases with slopes that queries choose, -2 sigmoid(q·w) slope_h min(|i - j|, reach), after ALiBi.

    "Train Short, Test Long" (Press et al. 2022) has fixed slopes, 2^(-8h/H) for head h from 1. Here a query multiplies
    the slope of its head by up to 2, so that it reads far or near. w is a vector of each head and layer.
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "content", "owner": "layer"}
    roles: ClassVar[Mapping[str, Role]] = {"choice": "weight"}

    def __init__(
        self,
        shape: Shape,
        *,
        reach: Annotated[int, "distance from which the bias grows no further", Range(1)] = 64,
    ) -> None:
        super().__init__()
        self.shape, self.reach = shape, reach
        self.choice = nn.Parameter(torch.empty(shape.heads, shape.head_width))
        slopes = [2.0 ** (-8 * (head + 1) / shape.heads) for head in range(shape.heads)]
        self.slopes = ConstantTensor(slopes, torch.float64)

    def bias(self, pair: Pair) -> Tensor:
        """(B, H, T, S)."""
        assert pair.q is not None, "a content bias needs queries"
        wide = torch.promote_types(pair.dtype, torch.float32)
        chosen = (pair.q @ self.choice.to(pair.q.dtype).unsqueeze(-1)).to(wide).sigmoid()  # (B, H, T, 1)
        offset = pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)  # (B|1, T, S)
        distance = offset.abs().clamp(max=self.reach).unsqueeze(1).to(wide)
        slopes = self.slopes.like(offset, wide)[:, None, None]  # (H, 1, 1)
        return (-2 * chosen * slopes * distance).to(pair.dtype)

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.queries * self.shape.heads * self.shape.head_width)

    def position_limit(self) -> int | None:
        return None


@hookimpl
def position() -> Mapping[str, type[Position]]:
    return {"query-slopes": QuerySlopes}
