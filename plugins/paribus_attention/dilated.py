"""Dilated sliding-window attention (`dilated`), Longformer's."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from torch import Tensor

from paribus import (
    SOFTMAX_TRAITS,
    AtMost,
    Attend,
    Attention,
    AttentionTraits,
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
    empty_cache,
    softmax_cost,
    visibility_of,
)


@final
class Dilated(Attention):
    """Dilated sliding-window attention with global tokens (Beltagy et al. 2020).

    "Longformer: The Long-Document Transformer", section 3.1. The token at position i sees positions i ± n `dilation`
    for n < `window`. The first `global_tokens` tokens see all tokens and are seen by all, through the same projections.
    Causal stacks see the past only; with the dilation equal to the stride this is one head of "Generating Long
    Sequences with Sparse Transformers" (Child et al. 2019).
    """

    traits: ClassVar[AttentionTraits] = {**SOFTMAX_TRAITS, "cross": False}

    def __init__(
        self,
        shape: Shape,
        *,
        window: Annotated[
            int,
            "steps that a token sees: |i - j| < window * dilation",
            Range(1),
            AtMost("length", "a longer window sees no more tokens"),
            Example(4),
        ],
        dilation: Annotated[int, "tokens in one step", Range(1), AtMost("length", "no token is that far away")] = 2,
        global_tokens: Annotated[
            int,
            "leading tokens that see all tokens and are seen by all",
            Range(0),
            AtMost("length", "that is every token"),
        ] = 0,
        kv_heads: Annotated[
            int | None, "key/value heads; null: one for each query head", Range(1), Divides("heads")
        ] = None,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=kv_heads or shape.heads, bias=scores.bias)
        self.attend = Attend(
            shape,
            visibility_of(shape, window)._replace(dilation=dilation, global_tokens=global_tokens),
            scores,
            kv_heads=self.heads.kv_heads,
        )

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.heads.kv_heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.visibility, load)
