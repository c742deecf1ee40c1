"""Sliding-window attention (`restricted`)."""

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
class Restricted(Attention):
    """Sliding-window attention, restricted to nearby positions (Vaswani et al. 2017).

    "Attention Is All You Need", section 4. In causal stacks the token at position i sees positions i - window + 1 to i;
    otherwise as many after it, too. With a window of 1 a token sees itself only.
    """

    traits: ClassVar[AttentionTraits] = {**SOFTMAX_TRAITS, "cross": False}

    def __init__(
        self,
        shape: Shape,
        *,
        window: Annotated[
            int,
            "size of the window: a token sees the keys with |i - j| < window",
            Range(1),
            AtMost("length", "a longer window is full attention"),
            Example(8),
        ],
        kv_heads: Annotated[
            int | None, "key/value heads; null: one for each query head", Range(1), Divides("heads")
        ] = None,
        qkv_bias: Annotated[
            bool, "add a bias to queries, keys and values if `scores.bias` is true (GPT-Neo: no)"
        ] = True,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=kv_heads or shape.heads, bias=scores.bias, qkv_bias=qkv_bias)
        self.attend = Attend(shape, visibility_of(shape, window), scores, kv_heads=self.heads.kv_heads)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.heads.kv_heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.visibility, load)
