"""The attention `additive`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    Context,
    Cost,
    Heads,
    Load,
    Role,
    ScoreFunctions,
    ScoreOptions,
    Shape,
    State,
    Traits,
    empty_cache,
    softmax_cost,
    visibility_of,
)
from paribus_attention.summed_scores import summed_scores


@final
class Additive(Attention):
    """Scores v · tanh(W q + U k): "Neural Machine Translation by Jointly Learning to Align and Translate" (Bahdanau et
    al. 2015).

    W and U are the projections of queries and keys, and each head has a v. Luong's "concat" is the same, with W and U
    side by side. The paper has one head and scales nothing (`scores.scaled: false`). A rotation would mean nothing
    where no product of a query and a key is taken.
    """

    traits: ClassVar[Traits] = {**SOFTMAX_TRAITS, "consumes": ["bias", "mix"]}
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
        return summed_scores(q, k, self.outer) * scale

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, self.attend.sight, load)  # v takes what a product would
