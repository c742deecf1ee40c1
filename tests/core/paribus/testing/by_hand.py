"""Attention with its own projections, masks, cache and softmax: faults/kit/by_hand.diff seeds faults in all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Divides,
    Load,
    Range,
    Role,
    Shape,
    State,
    softmax_cost,
    visibility_of,
)


@final
class ByHand(Attention):
    """softmax(q k^T / sqrt(K)) v, without parts of the library: "Attention Is All You Need" (Vaswani et al. 2017).

    (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
        "causal": True,
        "cross": True,
        "documents": True,
        "order": True,
        "extra_queries": True,
        "residual": True,
        "decodes": True,
    }
    roles: ClassVar[Mapping[str, Role]] = {
        "q.weight": "query",
        "k.weight": "key",
        "v.weight": "value",
        "o.weight": "residual",
    }

    def __init__(
        self,
        shape: Shape,
        *,
        kv_heads: Annotated[int, "key/value heads", Range(1), Divides("heads")] = 2,
        scaled: Annotated[bool, "whether scores are divided by the root of the head width"] = True,
        bias: Annotated[bool, "add a bias to the projections"] = True,
    ) -> None:
        super().__init__()
        self.shape, self.kv_heads = shape, kv_heads
        self.scale = 1 / math.sqrt(shape.head_width) if scaled else 1.0
        self.causal = shape.causal and shape.memory_width is None
        inner, kv_inner = shape.heads * shape.head_width, kv_heads * shape.head_width
        self.q = nn.Linear(shape.width, inner, bias=bias)
        self.k = nn.Linear(shape.memory_width or shape.width, kv_inner, bias=bias)
        self.v = nn.Linear(shape.memory_width or shape.width, kv_inner, bias=bias)
        self.o = nn.Linear(inner, shape.width, bias=bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        q = self.split(self.q(x))
        k, v = self.keys_and_values(x, ctx)
        k, v = (side.repeat_interleave(q.shape[1] // side.shape[1], dim=1) for side in (k, v))
        scores = q @ k.transpose(-1, -2) * self.scale  # (B, H, T, S)
        visible = self.visible(ctx, k.shape[2])
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1) * visible
        weights = functional.dropout(weights, self.shape.dropout, self.training)
        merged: Tensor = self.o((weights @ v).transpose(1, 2).flatten(-2))  # (B, H, T, K) -> (B, T, H*K) -> (B, T, D)
        return merged

    def split(self, x: Tensor) -> Tensor:
        """(B, T, G*K) -> (B, G, T, K)."""
        return x.view(*x.shape[:-1], -1, self.shape.head_width).transpose(1, 2)

    def keys_and_values(self, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        source = x[:, : ctx.key_layout.positions.shape[-1] - ctx.past] if ctx.memory is None else ctx.memory
        k, v = self.split(self.k(source)), self.split(self.v(source))
        if not ctx.state or ctx.memory is not None:
            return k, v
        end = ctx.past + k.shape[2]
        ctx.state["k"][:, :, ctx.past : end] = k
        ctx.state["v"][:, :, ctx.past : end] = v
        return ctx.state["k"][:, :, :end], ctx.state["v"][:, :, :end]

    def visible(self, ctx: Context, keys: int) -> Tensor:
        """(B|1, 1, T, S) bool: True where a query may attend to a key."""
        length = ctx.layout.positions.shape[-1]
        device = ctx.layout.positions.device
        query = (
            torch.arange(ctx.past, ctx.past + length, device=device) if ctx.layout.order is None else ctx.layout.order
        )
        key = torch.arange(keys, device=device) if ctx.key_layout.order is None else ctx.key_layout.order
        visible = torch.ones(1, length, keys, dtype=torch.bool, device=device)
        if self.causal or (ctx.layout.order is not None and ctx.memory is None):
            visible = key.unsqueeze(-2) <= query.unsqueeze(-1)
        if ctx.key_layout.documents is not None:
            query_documents = (
                ctx.layout.documents if ctx.layout.documents is not None else torch.zeros_like(ctx.layout.positions)
            )
            key_documents = ctx.key_layout.documents.unsqueeze(-2)
            visible = visible & (key_documents == query_documents.unsqueeze(-1)) & (key_documents >= 0)
        return visible.reshape(-1, 1, length, keys)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        if self.shape.memory_width is not None:
            return {}
        size = (batch, self.kv_heads, length, self.shape.head_width)
        return {"k": like.new_zeros(size), "v": like.new_zeros(size)}

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.kv_heads, visibility_of(self.shape), load)
