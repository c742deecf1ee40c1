"""Attention scored by a two-layer perceptron (`mlp-score`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

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
    Range,
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
class MultiLayerPerceptronScore(Attention):
    """Attention scored by a two-layer perceptron, v · tanh(W [q; k] + b) (Luong et al. 2015).

    The "concat" score of "Effective Approaches to Attention-based Neural Machine Translation", with one perceptron for
    each head, applied to projected queries and keys. The first layer is linear in both, so it is computed once for each
    token and not for each pair.
    """

    traits: ClassVar[AttentionTraits] = {**SOFTMAX_TRAITS, "position_hooks": ["bias", "mix"]}
    roles: ClassVar[Mapping[str, Role]] = {"inner.weight": "weight", "outer": "weight"}

    def __init__(
        self,
        shape: Shape,
        *,
        hidden: Annotated[int | None, "hidden width of each head's perceptron; null: the head width", Range(1)] = None,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape = shape
        self.hidden = hidden or shape.head_width
        self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores, scored=True)
        self.inner = nn.Linear(2 * shape.head_width, shape.heads * self.hidden, bias=scores.bias)
        self.outer = nn.Parameter(torch.empty(shape.heads, self.hidden))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx, ScoreFunctions(self.compare)))

    def compare(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """(B, H, T, K), (B, H, S, K) -> (B, H, T, S)."""
        layer = self.inner.weight.view(self.shape.heads, self.hidden, -1).transpose(1, 2)  # (H, 2K, F)
        q_weight, k_weight = layer.split(self.shape.head_width, dim=1)
        q, k = q @ q_weight, k @ k_weight
        if self.inner.bias is not None:
            q = q + self.inner.bias.view(self.shape.heads, 1, self.hidden)
        return additive_scores(q, k, self.outer) * scale

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        shape, keys = self.shape, load.keys if self.shape.memory_width is None else load.memory
        inner_flops = 2 * (load.queries + keys) * shape.heads * shape.head_width * self.hidden
        score_flops = 2 * load.queries * keys * shape.heads * (self.hidden - shape.head_width)  # beyond a dot product
        return softmax_cost(shape, shape.heads, self.attend.visibility, load) + Cost(flops=inner_flops + score_flops)
