"""Position: a learned bias in the logarithm of the distance, different for keys before and after the query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Pair, Position, PositionTraits, Range, Role, Shape


@final
class LogDistance(Position):
    """Score bias -s_h log(1 + distance / tau), with learned slopes, different behind and ahead: after "KERPLE" (Chi et
    al. 2022).
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "positions", "owner": "stack"}
    roles: ClassVar[Mapping[str, Role]] = {"behind": "gain", "ahead": "gain"}

    def __init__(
        self,
        shape: Shape,
        *,
        tau: Annotated[float, "distance up to which the bias is about linear", Range(above=0)] = 4.0,
        ahead_tau: Annotated[float, "the same for keys ahead of the query", Range(above=0)] = 2.0,
    ) -> None:
        super().__init__()
        self.tau, self.ahead_tau, self.causal = tau, ahead_tau, shape.causal
        self.behind = nn.Parameter(torch.ones(shape.heads))
        if not shape.causal:
            self.ahead = nn.Parameter(torch.ones(shape.heads))

    def bias(self, pair: Pair) -> Tensor:
        offset = pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)  # (B|1, T, S)
        offset = offset.unsqueeze(1)
        slope = self.behind.to(pair.dtype)[:, None, None]
        result = -slope * (offset.abs().float() / self.tau).log1p().to(pair.dtype)
        if self.causal:
            return result
        ahead = self.ahead.to(pair.dtype)[:, None, None]
        ahead_result = -ahead * (offset.abs().float() / self.ahead_tau).log1p().to(pair.dtype)
        return torch.where(offset < 0, ahead_result, result)

    def position_limit(self) -> int | None:
        return None
