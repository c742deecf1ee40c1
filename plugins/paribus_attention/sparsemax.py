"""Sparsemax attention (`sparsemax`)."""

from __future__ import annotations

from typing import final

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
    ScoreFunctions,
    ScoreOptions,
    Shape,
    State,
    at_least_float32,
    empty_cache,
    running_sums,
    softmax_cost,
    visibility_of,
)


@final
class Sparsemax(Attention):
    """Sparsemax attention, the projection of scores onto the simplex (Martins & Astudillo 2016).

    "From Softmax to Sparsemax: A Sparse Model of Attention and Multi-Label Classification". The weights of a query are
    the probabilities nearest to its scores: max(score - tau, 0), with the threshold tau for which they sum to 1. Keys
    with low scores have weight 0 exactly. tau is found by sorting, O(S log S) for each query. A sink is one more score.
    """

    traits = SOFTMAX_TRAITS

    def __init__(self, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores, scored=True)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx, ScoreFunctions(normalize=sparsemax)))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        # Sorting has no FLOPs.
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load)


def sparsemax(scores: Tensor, visible: Tensor) -> Tensor:
    """Return the projection of each row onto the simplex: (…, S) -> (…, S)."""
    z = at_least_float32(scores)
    z = z - z.amax(-1, keepdim=True).detach()  # the same weights, and thresholds near 0
    ranked = z.sort(-1, descending=True).values
    sums = running_sums(ranked)
    rank = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    size = (1 + rank * ranked > sums).sum(-1, keepdim=True)  # of the support: keys with weights above 0
    tau = (sums.gather(-1, size - 1) - 1) / size
    return (z - tau).relu().to(scores.dtype)
