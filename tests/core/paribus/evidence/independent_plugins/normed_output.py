# attention normed-output | mistake: heads are merged by a reshape without the transpose of heads and time | property: no access to future tokens (and padding, length and decoding, since rows of the result mix positions)
"""Attention with a norm of the output of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Heads,
    Load,
    RootMeanSquare,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    hookimpl,
    softmax_cost,
    visibility_of,
)


@final
class NormedOutput(Attention):
    """The output of each head is divided by its root mean square before the output projection."""

    traits: ClassVar[AttentionTraits] = {**SOFTMAX_TRAITS, "raw_memory": False}

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
        self.attend = Attend(shape, visibility_of(shape), ScoreOptions())
        self.norm = RootMeanSquare(shape.head_width)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        mixed = self.norm(self.attend(self.heads, x, ctx))
        batch, length, _ = x.shape
        return self.heads.o(mixed.reshape(batch, length, -1))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load)


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"normed-output": NormedOutput}
