"""The attention `qk-norm`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    Context,
    Cost,
    Heads,
    Load,
    Range,
    Role,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    softmax_cost,
    visibility_of,
)


@final
class QueryKeyNorm(Attention):
    """Scores are cosines times one learned scale: "Query-Key Normalization for Transformers" (Henry et al. 2020).

    No score is larger than the scale, however long queries and keys grow.
    """

    traits = SOFTMAX_TRAITS
    roles: ClassVar[Mapping[str, Role]] = {"gain": "gain"}

    def __init__(
        self,
        shape: Shape,
        *,
        scale: Annotated[float | None, "initial scale; null: log2(L^2 - L), as in the paper", Range(above=0)] = None,
        bias: Annotated[bool, "add a bias to the four projections"] = True,
    ) -> None:
        super().__init__()
        self.shape = shape
        longest = max(shape.length, 2)
        self.scale = math.log2(longest**2 - longest) if scale is None else scale
        self.gain = nn.Parameter(torch.ones(1))  # the learned scale is scale * gain; gains start at 1
        self.heads = Heads(shape, kv_heads=shape.heads, bias=bias)
        self.attend = Attend(shape, visibility_of(shape), ScoreOptions(bias=bias, scaled=False))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self, x, ctx))

    def queries(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, K), of norm scale * gain."""
        return functional.normalize(self.heads.queries(x), dim=-1) * (self.scale * self.gain)

    def keys(self, x: Tensor) -> Tensor:
        """(B, S, D) -> (B, H, S, K), of norm 1."""
        return functional.normalize(self.heads.keys(x), dim=-1)

    def values(self, x: Tensor) -> Tensor:
        return self.heads.values(x)

    def project(self, table: Tensor) -> tuple[Tensor, Tensor]:
        return self.queries(table), self.keys(table)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load)
