"""The attention `local-p`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

from torch import Tensor, nn

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    Context,
    Cost,
    Load,
    Range,
    Role,
    ScoreOptions,
    Shape,
    State,
    Traits,
    empty_cache,
    visibility_of,
)
from paribus_attention.nearness import around, lengths
from paribus_attention.row_heads import RowHeads, own_columns


@final
class LocalPredictive(Attention):
    """A row says where in the memory it looks, and reads what stands near that place: "Effective Approaches to
    Attention-based Neural Machine Translation" (Luong et al. 2015).

    Of the S keys that it sees, the place is p = S sigmoid(v · tanh(W x)). Keys from p - D to p + D are weighed by the
    scores of `bilinear` or of `dot`, and then by exp(-(s - p)² / (2 (D/2)²)), so that p is learned. All heads look at
    one place. The paper scales nothing (`scores.scaled: false`).
    """

    traits: ClassVar[Traits] = {**SOFTMAX_TRAITS, "shares": False}
    roles: ClassVar[Mapping[str, Role]] = {"place.weight": "weight", "outer.weight": "weight"}

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
        self.place = nn.Linear(shape.width, shape.width, bias=False)
        self.outer = nn.Linear(shape.width, 1, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        share = self.outer(self.place(x).tanh()).squeeze(-1).sigmoid()  # (B, T)
        scoring = around(lengths(ctx, self.attend.sight) * share, ctx, self.reach, falling=True)
        return self.heads.merge(self.attend(self.heads, x, ctx, scoring))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        predicting = 2 * load.queries * self.shape.width * (self.shape.width + 1)
        return self.heads.cost(self.attend.sight, load) + Cost(flops=predicting)
