"""Bilinear attention (`bilinear`), Luong's "general" score."""

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
from paribus_attention.unprojected_heads import UnprojectedHeads, match_head_width


@final
class Bilinear(Attention):
    """Bilinear attention, qᵀ W k, Luong's "general" score (Luong et al. 2015).

    "Effective Approaches to Attention-based Neural Machine Translation". Only queries are projected: head h compares
    its projected query with the h-th slice of the unprojected key. A raw memory may be wider or narrower than the
    query. The paper does not scale its scores (`scores.scaled: false`).
    """

    traits = SOFTMAX_TRAITS

    def __init__(self, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
        super().__init__()
        self.shape = shape = match_head_width(shape)
        self.heads = UnprojectedHeads(shape, project_queries=True, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return self.heads.cost(self.attend.visibility, load)
