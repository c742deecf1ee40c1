"""Logarithmic distance biases (`log-distance`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Pair, Position, PositionTraits, Range, Role, Shape, hookimpl


@final
class LogDistance(Position):
    """Logarithmic distance bias, -a log(1 + b |i - j|) with a and b learned for each head, KERPLE (Chi et al. 2022).

    "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation". a and b are learned as multiples of
    their initial values, and stay positive by their absolute value. All layers share them.
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "positions", "distance_bias": True, "owner": "stack"}
    roles: ClassVar[Mapping[str, Role]] = {"power": "gain", "scale": "gain"}

    def __init__(
        self,
        shape: Shape,
        *,
        power: Annotated[float, "initial a", Range(above=0)] = 1.0,
        scale: Annotated[float, "initial b", Range(above=0)] = 1.0,
    ) -> None:
        super().__init__()
        self.initial_power, self.initial_scale = power, scale
        self.power, self.scale = (nn.Parameter(torch.ones(shape.heads)) for _ in "ab")

    def bias(self, pair: Pair) -> Tensor:
        """(B|1, H, T, S)."""
        dtype = torch.promote_types(pair.dtype, torch.float32)
        distance = (pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)).abs()  # (B|1, T, S)
        a = self.power.to(dtype).abs()[:, None, None] * self.initial_power
        b = self.scale.to(dtype).abs()[:, None, None] * self.initial_scale
        return -a * (b * distance.unsqueeze(1).to(dtype)).log1p()

    def position_limit(self) -> int | None:
        return None


@hookimpl
def position() -> Mapping[str, type[Position]]:
    return {"log-distance": LogDistance}
