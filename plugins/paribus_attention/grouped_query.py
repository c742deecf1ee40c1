"""Grouped-query attention (`gqa`)."""

from __future__ import annotations

from typing import Annotated, final

from torch import Tensor

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    Context,
    Cost,
    Divides,
    Heads,
    Load,
    Range,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    softmax_cost,
    visibility_of,
)


@final
class GroupedQuery(Attention):
    """Grouped-query attention (Ainslie et al. 2023).

    "GQA: Training Generalized Multi-Query Transformer Models". Each key/value head serves a group of query heads.
    """

    traits = SOFTMAX_TRAITS

    def __init__(
        self,
        shape: Shape,
        *,
        kv_heads: Annotated[int, "key/value heads", Range(1), Divides("heads")] = 2,
        output_bias: Annotated[bool, "add a bias to the output if `scores.bias` is true (Qwen 2: no)"] = True,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=kv_heads, bias=scores.bias, output_bias=output_bias)
        self.attend = Attend(shape, visibility_of(shape), scores, kv_heads=self.heads.kv_heads)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.heads.kv_heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.visibility, load)
