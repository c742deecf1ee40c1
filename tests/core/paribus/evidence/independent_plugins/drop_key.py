# attention drop-key | mistake: keys are dropped in evaluation too, since `self.training` is not checked | property: evaluation is deterministic, without dropout
"""DropKey."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

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
class DropKey(Attention):
    """Random keys are hidden from random queries before the softmax: "DropKey" (Li et al. 2023)."""

    traits: ClassVar[AttentionTraits] = {**SOFTMAX_TRAITS, "stochastic": True}

    def __init__(
        self, shape: Shape, *, rate: Annotated[float, "share of the scores that are hidden", Range(0, below=1)] = 0.1
    ) -> None:
        super().__init__()
        self.shape, self.rate = shape, rate
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
        self.attend = Attend(shape, visibility_of(shape), ScoreOptions(), scored=True)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx, ScoreFunctions(map_scores=self.hide)))

    def hide(self, scores: Tensor) -> Tensor:
        """(B, H, T, S) -> (B, H, T, S)."""
        hidden = torch.rand_like(scores) < self.rate
        return scores - 1e4 * hidden.to(scores.dtype)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load)


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"drop-key": DropKey}
