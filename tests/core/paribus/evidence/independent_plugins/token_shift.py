# attention token-shift | mistake: the decoding state keeps the first token of a chunk as "the previous token", not its last | property: decoding in chunks equals one pass (steps of one token are right)
"""Attention whose keys and values mix each token with the one before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Heads,
    Load,
    Role,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    hookimpl,
    softmax_cost,
    visibility_of,
)


@final
class TokenShift(Attention):
    """Keys and values of a learned mix of each token and the token before it: "RWKV" (Peng et al. 2023)."""

    traits: ClassVar[AttentionTraits] = {
        **SOFTMAX_TRAITS,
        "cross": False,
        "documents": False,
        "order": False,
        "extra_queries": False,
        "raw_memory": False,
    }
    roles: ClassVar[Mapping[str, Role]] = {"share": "bias"}

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
        self.attend = Attend(shape, visibility_of(shape), ScoreOptions())
        self.share = nn.Parameter(torch.zeros(shape.width))  # of the token before, minus a half

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        mixed = torch.lerp(x, self.previous(x, ctx), (0.5 + self.share).to(x.dtype))
        q = self.attend.queries(self.heads, x, ctx)
        k, v = self.attend.keys_and_values(self.heads, mixed, ctx)
        return self.heads.merge(self.attend.weigh_values(q, k, v, self.heads, ctx))

    def previous(self, x: Tensor, ctx: Context) -> Tensor:
        """Return the token before each, zeros before the first: (B, T, D) -> (B, T, D)."""
        before = torch.zeros_like(x[:, :1])
        if ctx.state is not None:
            before = ctx.state["previous"].to(x.dtype)
            ctx.state["previous"] = x[:, :1]
        return torch.cat([before, x[:, :-1]], dim=1)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        cache = empty_cache(self.shape, self.shape.heads, batch, length, like)
        return {**cache, "previous": like.new_zeros(batch, 1, self.shape.width)}

    def cost(self, load: Load) -> Cost:
        scores = softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load)
        return scores + Cost(state=self.shape.width)


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"token-shift": TokenShift}
