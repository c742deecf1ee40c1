"""Attention with dropout of keys before the softmax (`drop-key-attention`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

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
class DropKeyAttention(Attention):
    """DropKey attention, dropout of scores instead of weights (Li et al. 2023).

    "DropKey for Vision Transformer". In training, each query of each head and sequence loses a random share of its
    keys, as large as the model's dropout, and the softmax gives their weight to its other keys: weights always sum to
    1, and none of them is dropped or scaled afterwards. A query that loses all keys that it sees reads them equally.
    """

    traits = SOFTMAX_TRAITS

    def __init__(self, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
        super().__init__()
        self.shape, self.rate = shape, shape.dropout
        self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias)
        # Without the dropout of weights.
        self.attend = Attend(replace(shape, dropout=0.0), visibility_of(shape), scores, scored=True)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        scoring = ScoreFunctions(map_scores=self.drop_keys)
        return self.heads.merge(self.attend(self.heads, x, ctx, scoring))

    def drop_keys(self, scores: Tensor) -> Tensor:
        """(B, H, T, S) -> (B, H, T, S)."""
        if not self.training or self.rate == 0:
            return scores
        kept = functional.dropout(torch.ones_like(scores), self.rate) > 0
        # Above the score of hidden keys, which no query may read, even if it loses all others.
        return scores.masked_fill(~kept, torch.finfo(scores.dtype).min / 2)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load)


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"drop-key-attention": DropKeyAttention}
