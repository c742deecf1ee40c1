"""The attention `dot`."""

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
from paribus_attention.row_heads import RowHeads


@final
class Dot(Attention):
    """Rows score by their own product, with nothing learned in it: "Effective Approaches to Attention-based Neural
    Machine Translation" (Luong et al. 2015).

    Head h compares the h-th stretch of columns of both; values and the way back are as everywhere. The paper scales
    nothing (`scores.scaled: false`).
    """

    traits = SOFTMAX_TRAITS

    def __init__(self, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
        super().__init__()
        self.shape = shape
        self.heads = RowHeads(shape, asks=False, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return self.heads.cost(self.attend.sight, load)
