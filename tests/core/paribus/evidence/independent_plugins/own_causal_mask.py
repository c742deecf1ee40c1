# attention own-causal-mask | mistake: the hand-written causal mask knows no documents and no padding, but the trait `documents` is declared | property: packed documents and padding do not change the result
"""Attention whose values are gated by the query's token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Heads,
    Load,
    Role,
    Shape,
    State,
    empty_cache,
    hookimpl,
    softmax_cost,
    visibility_of,
)


@final
class OutputGate(Attention):
    """Softmax attention, multiplied by a sigmoid gate of the query's token: "Gated Attention" (Qiu et al. 2025)."""

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
        "causal": True,
        "cross": False,
        "documents": True,
        "order": False,
        "residual": True,
        "weights": False,
        "decodes": True,
    }
    roles: ClassVar[Mapping[str, Role]] = {"gate.weight": "weight"}

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
        self.gate = nn.Linear(shape.width, shape.heads * shape.head_width)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q, k, v = self.heads.queries(x), self.heads.keys(x), self.heads.values(x)
        if ctx.state is not None:
            end = ctx.past + k.shape[2]
            ctx.state["k"][:, :, ctx.past : end], ctx.state["v"][:, :, ctx.past : end] = k, v
            k, v = ctx.state["k"][:, :, :end].to(q.dtype), ctx.state["v"][:, :, :end].to(q.dtype)
        mask = None
        if self.shape.causal:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=x.device).tril(ctx.past)
        dropout = self.shape.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        return self.heads.merge(mixed * self.heads.split(self.gate(x).sigmoid(), self.shape.heads))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        gate = 2 * load.queries * self.shape.width * self.shape.heads * self.shape.head_width
        return softmax_cost(self.shape, self.shape.heads, visibility_of(self.shape), load) + Cost(flops=gate)


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"own-causal-mask": OutputGate}
