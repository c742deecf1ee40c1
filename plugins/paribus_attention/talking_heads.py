"""Talking-heads attention (`talking-heads`)."""

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


@final
class TalkingHeads(Attention):
    """Talking-heads attention, heads mixed before and after the softmax (Shazeer et al. 2020).

    "Talking-Heads Attention". The score of head h is the sum over g of `before[h, g]` times the score of head g;
    position biases are added afterwards, for each head. Both maps are initialised like any matrix; `xavier` gives the
    variance-preserving initialisation of the paper's code. The reported weights are those after the second map, and
    those of a query need not sum to 1.
    """

    traits: ClassVar[AttentionTraits] = {**SOFTMAX_TRAITS, "normalized": False}
    roles: ClassVar[Mapping[str, Role]] = {"before": "weight", "after": "weight"}

    def __init__(self, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores, scored=True)
        self.before = nn.Parameter(torch.empty(shape.heads, shape.heads))
        self.after = nn.Parameter(torch.empty(shape.heads, shape.heads))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        scoring = ScoreFunctions(compare=self.compare, map_weights=lambda weights: mix_heads(self.after, weights))
        return self.heads.merge(self.attend(self.heads, x, ctx, scoring))

    def compare(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """(B, H, T, K), (B, H, S, K) -> (B, H, T, S)."""
        return mix_heads(self.before, q @ k.transpose(-1, -2) * scale)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        keys = load.keys if self.shape.memory_width is None else load.memory
        talk = 2 * 2 * self.shape.heads**2 * load.queries * keys
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load) + Cost(flops=talk)


def mix_heads(talk: Tensor, x: Tensor) -> Tensor:
    """Mix heads by the matrix `talk`: (H, H), (B, H, T, S) -> (B, H, T, S)."""
    return (talk @ x.flatten(-2)).view_as(x)  # (H, H) @ (B, H, T*S)
