"""The attention `dilated`."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from torch import Tensor

from paribus import (
    SOFTMAX_TRAITS,
    AtMost,
    Attend,
    Attention,
    Context,
    Cost,
    Divides,
    Example,
    Heads,
    Load,
    Range,
    ScoreOptions,
    Shape,
    State,
    Traits,
    empty_cache,
    softmax_cost,
    visibility_of,
)


@final
class Dilated(Attention):
    """A sliding window with gaps, and first rows that all see: "Longformer" (Beltagy et al. 2020), section 3.1.

    Row i sees the rows a multiple of `dilation` away, fewer than `window` such steps; the first `first` rows see all
    and are seen by all, through the projections of all others. Causal, none of it lies in the future; with a stride
    for a dilation it is a head of "Generating Long Sequences with Sparse Transformers" (Child et al. 2019).
    """

    traits: ClassVar[Traits] = {**SOFTMAX_TRAITS, "cross": False}

    def __init__(
        self,
        shape: Shape,
        *,
        window: Annotated[
            int,
            "how many steps a row sees: |i - j| < window * dilation",
            Range(1),
            AtMost("length", "that sees as far as there are rows"),
            Example(4),
        ],
        dilation: Annotated[int, "how many rows a step is", Range(1), AtMost("length", "no row is that far away")] = 2,
        first: Annotated[
            int, "so many first rows see all, and all see them", Range(0), AtMost("length", "that is all rows")
        ] = 0,
        kv_heads: Annotated[
            int | None, "key/value heads; null: one for each query head", Range(1), Divides("heads")
        ] = None,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=kv_heads or shape.heads, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape, window)._replace(dilation=dilation, first=first), scores)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.heads.kv_heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.sight, load)
