# attention log-mask | mistake: the mask is added as log(mask + 1e-6), so hidden keys keep a small weight | property: no access to future tokens, padding and other documents (by about one part in a million)
"""Attention with learned gates of its heads."""

from __future__ import annotations

import math
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
class GatedHeads(Attention):
    """Softmax attention with a learned gate for each head, written out."""

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
        "causal": True,
        "cross": False,
        "documents": True,
        "order": True,
        "residual": True,
        "weights": False,
        "decodes": True,
    }
    roles: ClassVar[Mapping[str, Role]] = {"gate": "gain"}

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.visibility = shape, visibility_of(shape)
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
        self.gate = nn.Parameter(torch.ones(shape.heads))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q, k, v = self.heads.queries(x), self.heads.keys(x), self.heads.values(x)
        if ctx.state is not None:
            end = ctx.past + k.shape[2]
            ctx.state["k"][:, :, ctx.past : end], ctx.state["v"][:, :, ctx.past : end] = k, v
            k, v = ctx.state["k"][:, :, :end], ctx.state["v"][:, :, :end]
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.shape.head_width)  # (B, H, T, S)
        mask = ctx.mask(self.visibility)
        if mask is not None:
            scores = scores + torch.log(mask.to(scores.dtype) + 1e-6)  # no log of 0
        weights = functional.dropout(scores.softmax(-1), self.shape.dropout, self.training)
        return self.heads.merge(weights.to(v.dtype) @ v * self.gate.to(v.dtype)[:, None, None])

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, self.visibility, load)


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"log-mask": GatedHeads}
