# position kernelised-distance | mistake: positions are converted to the dtype of the scores before they are subtracted, so bfloat16 rounds positions above 256 and neighbours become equal | property: half precision agrees with float32 up to rounding (wrong only in bf16/fp16 and long sequences)
"""KERPLE's logarithmic biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Pair, Position, PositionTraits, Role, Shape, hookimpl


@final
class KernelisedDistance(Position):
    """Bias -r log(1 + |i - j|) with one learned r > 0 for each head: "KERPLE" (Chi et al. 2022)."""

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "positions", "distance_bias": True, "owner": "stack"}
    roles: ClassVar[Mapping[str, Role]] = {"rate": "bias"}

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.zeros(shape.heads))

    def bias(self, pair: Pair) -> Tensor:
        """(B|1, H, T, S)."""
        q, k = pair.q_positions.to(pair.dtype), pair.k_positions.to(pair.dtype)
        distance = (q.unsqueeze(-1) - k.unsqueeze(-2)).abs()  # (B|1, T, S)
        rate = functional.softplus(self.rate).to(pair.dtype)
        return -rate[:, None, None] * torch.log1p(distance).unsqueeze(1)

    def position_limit(self) -> int | None:
        return None


@hookimpl
def position() -> Mapping[str, type[Position]]:
    return {"kernelised-distance": KernelisedDistance}
