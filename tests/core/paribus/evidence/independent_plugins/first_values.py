# attention first-values | mistake: the values of the first layer are detached before later layers mix them in | property: gradients equal those of the output (finite differences); `exact_gradients` is not declared
"""Value residuals."""

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
class FirstValues(Attention):
    """Values plus a learned share of those of the first layer: "Value Residual Learning" (Zhou et al. 2024)."""

    traits: ClassVar[AttentionTraits] = {**SOFTMAX_TRAITS, "cross": False, "raw_memory": False}
    roles: ClassVar[Mapping[str, Role]] = {"share": "bias"}

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
        self.attend = Attend(shape, visibility_of(shape), ScoreOptions())
        self.share = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q = self.attend.queries(self.heads, x, ctx)
        k, v = self.attend.keys_and_values(self.heads, x, ctx)
        assert ctx.carry is not None, "expected a dictionary for values of early layers"
        if "first-values" in ctx.carry:
            first = ctx.carry["first-values"].detach()
        else:
            first = ctx.carry["first-values"] = v
        mixed = v + (0.5 + self.share).to(v.dtype) * first
        return self.heads.merge(self.attend.weigh_values(q, k, mixed, self.heads, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load)


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"first-values": FirstValues}
