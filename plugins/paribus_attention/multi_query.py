"""Multi-query attention (`mqa`)."""

from __future__ import annotations

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
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    softmax_cost,
    visibility_of,
)


@final
class MultiQuery(Attention):
    """Multi-query attention, one key/value head for all query heads (Shazeer 2019).

    "Fast Transformer Decoding: One Write-Head is All You Need".
    """

    traits = SOFTMAX_TRAITS

    def __init__(self, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=1, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores, kv_heads=self.heads.kv_heads)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.heads.kv_heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.visibility, load)
