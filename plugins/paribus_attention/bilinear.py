"""The attention `bilinear`."""

from __future__ import annotations

from typing import final

from torch import Tensor

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    Context,
    Cost,
    Load,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    visibility_of,
)
from paribus_attention.row_heads import RowHeads, own_columns


@final
class Bilinear(Attention):
    """Rows score by a product with one matrix in it, Luong's "general": "Effective Approaches to Attention-based Neural
    Machine Translation" (Luong et al. 2015).

    The matrix is on the side of the query: head h compares what it makes of that with the h-th stretch of columns of
    the key's row, of which a memory may have more or fewer than the query, where that is read as it stands. The paper
    scales nothing (`scores.scaled: false`).
    """

    traits = SOFTMAX_TRAITS

    def __init__(self, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
        super().__init__()
        self.shape = shape = own_columns(shape)
        self.heads = RowHeads(shape, asks=True, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return self.heads.cost(self.attend.sight, load)
