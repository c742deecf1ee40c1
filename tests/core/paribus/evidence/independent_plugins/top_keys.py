# attention top-keys | mistake: the threshold of the top-k is taken from the scores before the causal mask, so future keys compete for the k places | property: no access to future tokens (and to padding or other documents)
"""Top-k attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, final

import torch
from torch import Tensor

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
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
class TopKeys(Attention):
    """Each query attends to the keys with its `top` largest scores: "Explicit Sparse Transformer" (Zhao et al. 2019)."""

    traits = SOFTMAX_TRAITS

    def __init__(self, shape: Shape, *, top: Annotated[int, "keys that a query reads", Range(1)] = 8) -> None:
        super().__init__()
        self.shape, self.top = shape, top
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
        self.attend = Attend(shape, visibility_of(shape), ScoreOptions(), scored=True)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx, ScoreFunctions(map_scores=self.keep_largest)))

    def keep_largest(self, scores: Tensor) -> Tensor:
        """(B, H, T, S) -> (B, H, T, S)."""
        threshold = scores.topk(min(self.top, scores.shape[-1]), dim=-1).values[..., -1:]
        return scores.masked_fill(scores < threshold, torch.finfo(scores.dtype).min)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load)


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"top-keys": TopKeys}
