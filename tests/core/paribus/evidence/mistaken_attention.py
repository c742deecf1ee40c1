"""Attentions with one honest mistake each, as a plugin: `paribus run STUDY --plugin mistaken_attention.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from paribus import (
    SOFTMAX_TRAITS,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Heads,
    Load,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    hookimpl,
    softmax_cost,
    visibility_of,
)


class HandMade(Attention):
    """Multi-head attention without `Attend`, and without a mistake."""

    traits: ClassVar[AttentionTraits] = {**SOFTMAX_TRAITS, "decodes": False}

    def __init__(self, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        q, k, v = self.heads.queries(x), self.heads.keys(x), self.values(self.heads.values(x))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        seen = self.mask(ctx)
        if seen is not None:
            scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        return self.heads.merge(self.drop(scores.softmax(-1)) @ v)

    def values(self, v: Tensor) -> Tensor:
        return v

    def mask(self, ctx: Context) -> Tensor | None:
        return ctx.mask(visibility_of(self.shape))

    def drop(self, weights: Tensor) -> Tensor:
        return functional.dropout(weights, self.shape.dropout, self.training)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, visibility_of(self.shape), load)


class WithoutMask(HandMade):
    """Its causal mask is missing."""

    def mask(self, ctx: Context) -> Tensor | None:
        return ctx.mask(visibility_of(self.shape)._replace(causal=False))


class ShiftedMask(HandMade):
    """Its causal mask is shifted by one."""

    def mask(self, ctx: Context) -> Tensor | None:
        seen = super().mask(ctx)
        return seen if seen is None else seen | seen.roll(-1, -2)


class ReadsPadding(HandMade):
    """It reads padding and other documents."""

    def mask(self, ctx: Context) -> Tensor | None:
        length = ctx.layout.positions.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool, device=ctx.layout.positions.device)
        return seen.tril() if self.shape.causal else None


class BatchStatistics(HandMade):
    """It subtracts the mean of the batch."""

    def values(self, v: Tensor) -> Tensor:
        return v - v.mean(0, keepdim=True)


class KeptState(HandMade):
    """It adds the mean of the last batch."""

    last: Tensor | None = None

    def values(self, v: Tensor) -> Tensor:
        kept, self.last = self.last, v.detach().mean()
        return v if kept is None else v + kept.to(v.dtype)


class DetachedHalf(HandMade):
    """Half of its values are detached."""

    def values(self, v: Tensor) -> Tensor:
        first, second = v.chunk(2, -1)
        return torch.cat([first.detach(), second], -1)


class DetachedInFloat32(DetachedHalf):
    """They are detached in float32 only."""

    def values(self, v: Tensor) -> Tensor:
        return super().values(v) if v.dtype == torch.float32 else v


class ScaledInTraining(HandMade):
    """Its output is larger in training."""

    def drop(self, weights: Tensor) -> Tensor:
        return super().drop(weights) * (1.1 if self.training else 1.0)


class OwnRate(HandMade):
    """Its dropout has a rate of its own."""

    def drop(self, weights: Tensor) -> Tensor:
        return functional.dropout(weights, 0.3, self.training)


class HalfRate(HandMade):
    """Its dropout has half the rate."""

    def drop(self, weights: Tensor) -> Tensor:
        return functional.dropout(weights, self.shape.dropout / 2, self.training)


class UnscaledDropout(HandMade):
    """Its dropout does not scale what it keeps."""

    def drop(self, weights: Tensor) -> Tensor:
        return weights * (torch.rand_like(weights) > self.shape.dropout) if self.training else weights


class DroppedByHand(HandMade):
    """Its dropout is its own code, without a mistake."""

    def drop(self, weights: Tensor) -> Tensor:
        rate = self.shape.dropout
        return weights * (torch.rand_like(weights) > rate) / (1 - rate) if self.training else weights


class DeclaredNoise(HandMade):
    """In training it drops some weights at any rate, which it declares; no mistake."""

    traits: ClassVar[AttentionTraits] = {**HandMade.traits, "stochastic": True}

    def drop(self, weights: Tensor) -> Tensor:
        return weights * (torch.rand_like(weights) > 0.1) if self.training else weights


class ClaimsToDecode(HandMade):
    """Ignores the state of earlier tokens, which its traits promise to use."""

    traits = SOFTMAX_TRAITS


CLASSES: Mapping[str, type[HandMade]] = {
    "hand-made": HandMade,
    "claims-to-decode": ClaimsToDecode,
    "dropped-by-hand": DroppedByHand,
    "declared-noise": DeclaredNoise,
    "without-mask": WithoutMask,
    "shifted-mask": ShiftedMask,
    "reads-padding": ReadsPadding,
    "batch-statistics": BatchStatistics,
    "kept-state": KeptState,
    "detached-half": DetachedHalf,
    "detached-in-float32": DetachedInFloat32,
    "scaled-in-training": ScaledInTraining,
    "own-rate": OwnRate,
    "half-rate": HalfRate,
    "unscaled-dropout": UnscaledDropout,
}


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return CLASSES
