"""Multi-head attention (`mha`)."""

from __future__ import annotations

from typing import Annotated, final

from torch import Tensor

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    Context,
    Cost,
    Heads,
    Load,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    softmax_cost,
    visibility_of,
)


@final
class MultiHead(Attention):
    """Multi-head attention (Vaswani et al. 2017).

    "Attention Is All You Need". Each query head has its own key/value head.
    """

    traits = SOFTMAX_TRAITS

    def __init__(
        self,
        shape: Shape,
        *,
        qkv_bias: Annotated[
            bool, "add a bias to queries, keys and values if `scores.bias` is true (GPT-Neo: no)"
        ] = True,
        key_bias: Annotated[bool, "add a bias to keys if `scores.bias` and `qkv_bias` are true (DeBERTa: no)"] = True,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias, qkv_bias=qkv_bias, key_bias=key_bias)
        self.attend = Attend(shape, visibility_of(shape), scores)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.heads.kv_heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.visibility, load)
