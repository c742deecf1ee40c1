# attention width-scale | mistake: scores are divided by the root of the model width, not of the head width | property: none: only a wrong formula
"""Scaled dot-product attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from torch import Tensor

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    Context,
    Cost,
    Heads,
    Load,
    ScoreFunctions,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    hookimpl,
    softmax_cost,
    visibility_of,
)


@final
class WidthScale(Attention):
    """Scaled dot-product attention (Vaswani et al. 2017)."""

    traits = SOFTMAX_TRAITS

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
        self.attend = Attend(shape, visibility_of(shape), ScoreOptions(), scored=True)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx, ScoreFunctions(compare=self.compare)))

    def compare(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """(B, H, T, K), (B, H, S, K) -> (B, H, T, S)."""
        return q @ k.transpose(-1, -2) / math.sqrt(self.shape.width)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load)


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"width-scale": WidthScale}
