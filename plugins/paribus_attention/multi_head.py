"""The attention `mha`."""

from __future__ import annotations

from typing import Annotated, final

from torch import Tensor

from paribus import (
    SOFTMAX,
    Attend,
    Attention,
    Context,
    Cost,
    Heads,
    Load,
    Scores,
    Shape,
    State,
    empty_cache,
    sight_of,
    softmax_cost,
)


@final
class MultiHead(Attention):
    """A key/value head for each query head: "Attention Is All You Need" (Vaswani et al. 2017)."""

    traits = SOFTMAX

    def __init__(
        self,
        shape: Shape,
        *,
        key_bias: Annotated[bool, "whether keys have a bias where the others have one (DeBERTa: no)"] = True,
        scores: Scores = Scores(),
    ) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias, key_bias=key_bias)
        self.attend = Attend(shape, sight_of(shape), scores)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.heads.kv_heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.sight, load)
