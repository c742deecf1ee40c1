"""The attention `local-m`."""

from __future__ import annotations

from typing import Annotated, Literal, final

from torch import Tensor

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    Context,
    Cost,
    Load,
    Range,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    visibility_of,
)
from paribus_attention.nearness import around
from paribus_attention.row_heads import RowHeads, own_columns


@final
class LocalMonotonic(Attention):
    """A row reads what stands near its own place in the memory, as if both sides went at one pace: "Effective
    Approaches to Attention-based Neural Machine Translation" (Luong et al. 2015).

    Row t weighs the keys from t - D to t + D, by the scores of `bilinear` or of `dot`. Places are positions, which
    documents in one row each count for themselves. The paper scales nothing (`scores.scaled: false`).
    """

    traits = SOFTMAX_TRAITS

    def __init__(
        self,
        shape: Shape,
        *,
        score: Annotated[Literal["general", "dot"], "how a row and a key are compared: bilinear, or dot"] = "general",
        reach: Annotated[int, "keys to each side that are weighed, D", Range(1)] = 10,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape = shape = own_columns(shape) if score == "general" else shape
        self.reach = reach
        self.heads = RowHeads(shape, asks=score == "general", bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores, scored=True)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        scoring = around(ctx.rows.positions, ctx, self.reach, falling=False)
        return self.heads.merge(self.attend(self.heads, x, ctx, scoring))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return self.heads.cost(self.attend.sight, load)  # what is far is scored, and then weighed by 0
