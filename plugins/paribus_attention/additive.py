"""Additive attention (`additive`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Heads,
    Load,
    Role,
    ScoreFunctions,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    softmax_cost,
    visibility_of,
)
from paribus_attention.additive_scores import additive_scores


@final
class Additive(Attention):
    """Additive attention, v · tanh(W q + U k) (Bahdanau et al. 2015).

    "Neural Machine Translation by Jointly Learning to Align and Translate". W and U are the query and key projections;
    each head has its own v. Luong's "concat" score is the same function, with W and U side by side. The paper has one
    head and does not scale its scores (`scores.scaled: false`). Rotary positions do not apply, because no product of a
    query and a key is computed.
    """

    traits: ClassVar[AttentionTraits] = {**SOFTMAX_TRAITS, "position_hooks": ["bias", "mix"]}
    roles: ClassVar[Mapping[str, Role]] = {"outer": "weight"}

    def __init__(self, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores, scored=True)
        self.outer = nn.Parameter(torch.empty(shape.heads, shape.head_width))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx, ScoreFunctions(self.compare)))

    def compare(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """(B, H, T, K), (B, H, S, K) -> (B, H, T, S)."""
        return additive_scores(q, k, self.outer) * scale

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        # Multiplying by v costs as much as a dot product.
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load)
