"""Local attention with monotonic alignment (`local-m`)."""

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
from paribus_attention.local_window import local_scoring
from paribus_attention.unprojected_heads import UnprojectedHeads, match_head_width


@final
class LocalMonotonic(Attention):
    """Local attention with monotonic alignment (Luong et al. 2015).

    "Effective Approaches to Attention-based Neural Machine Translation". The query at position t sees the keys from t -
    D to t + D, scored as in `bilinear` or `dot`. Packed documents count positions separately. The paper does not scale
    its scores (`scores.scaled: false`).
    """

    traits = SOFTMAX_TRAITS

    def __init__(
        self,
        shape: Shape,
        *,
        score: Annotated[
            Literal["general", "dot"], "score of a query and a key: general (`bilinear`) or dot"
        ] = "general",
        reach: Annotated[int, "keys on each side of the centre, D", Range(1)] = 10,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape = shape = match_head_width(shape) if score == "general" else shape
        self.reach = reach
        self.heads = UnprojectedHeads(shape, project_queries=score == "general", bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores, scored=True)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        scoring = local_scoring(ctx.layout.positions, ctx, self.reach, gaussian=False)
        return self.heads.merge(self.attend(self.heads, x, ctx, scoring))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return self.heads.cost(self.attend.visibility, load)  # keys outside the window are scored too, and then masked
