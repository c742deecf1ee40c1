"""Local attention with predictive alignment (`local-p`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

from torch import Tensor, nn

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Load,
    Range,
    Role,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    visibility_of,
)
from paribus_attention.local_window import local_scoring, visible_key_counts
from paribus_attention.unprojected_heads import UnprojectedHeads, match_head_width


@final
class LocalPredictive(Attention):
    """Local attention with predictive alignment (Luong et al. 2015).

    "Effective Approaches to Attention-based Neural Machine Translation". The query x predicts the centre of its window,
    p = S sigmoid(v · tanh(W x)), among the S keys that it sees. Keys from p - D to p + D are scored as in `bilinear` or
    `dot`, and their weights are multiplied by exp(-(s - p)² / (2 (D/2)²)), which gives p a gradient. All heads share p.
    The paper does not scale its scores (`scores.scaled: false`).
    """

    traits: ClassVar[AttentionTraits] = {**SOFTMAX_TRAITS, "normalized": False}
    roles: ClassVar[Mapping[str, Role]] = {"place.weight": "weight", "outer.weight": "weight"}

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
        self.place = nn.Linear(shape.width, shape.width, bias=False)
        self.outer = nn.Linear(shape.width, 1, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        relative_centre = self.outer(self.place(x).tanh()).squeeze(-1).sigmoid()  # (B, T)
        scoring = local_scoring(
            visible_key_counts(ctx, self.attend.visibility) * relative_centre, ctx, self.reach, gaussian=True
        )
        return self.heads.merge(self.attend(self.heads, x, ctx, scoring))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        centre_flops = 2 * load.queries * self.shape.width * (self.shape.width + 1)
        return self.heads.cost(self.attend.visibility, load) + Cost(flops=centre_flops)
