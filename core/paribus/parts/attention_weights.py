"""Attention weights as in the papers: the reference for every kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from paribus.parts.context import AttentionPlan, LayerScoring, Pair, ScoreFunctions
from paribus.parts.heads import repeat_heads
from paribus.parts.visibility import visibility_mask

if TYPE_CHECKING:
    from paribus.slots.attention import Attention


class DensePlan(NamedTuple):
    """Visibility and position bias for all queries and keys."""

    seen: Tensor | None  # (B|1, 1, T, S) bool
    bias: Tensor | None  # (B|1, H, T, S)


def require_attention_weights(attentions: Sequence[Attention]) -> None:
    """Raise a ValueError if no attention has attention weights; others beside it return none."""
    if any(attention.traits.get("weights", False) for attention in attentions):
        return
    kinds = ", ".join(dict.fromkeys(type(attention).__name__ for attention in attentions))
    raise ValueError(f"expected an attention with the trait `weights`, got {kinds or 'none'}")


def dense_plan(plan: AttentionPlan, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor) -> DensePlan:
    """Return the dense form of a plan, made once per forward pass."""
    position_bias = None
    if bias is not None:
        pair = Pair(None, None, plan.q.positions, plan.k.positions, plan.scale, heads, dtype=like.dtype)
        position_bias = bias(pair).to(like.dtype)
    by_row = plan.k.documents is None and not plan.request.has_order
    return DensePlan(visibility_mask(plan.request.visibility, plan.q, plan.k, window_by_index=by_row), position_bias)


def all_pairs(q: Tensor, k: Tensor, plan: AttentionPlan, content: LayerScoring) -> Pair:
    """Return all queries and keys as a pair, the input of a position's bias or mix."""
    return Pair(
        q,
        repeat_heads(k, q.shape[1]),
        plan.q.positions,
        plan.k.positions,
        plan.scale,
        q.shape[1],
        content.project,
        q.dtype,
        content.position_part,
        plan.q.segments,
        plan.k.segments,
    )


def attention_weights(q: Tensor, k: Tensor, plan: AttentionPlan, content: LayerScoring | None) -> Tensor:
    """Return softmax(cap(q k^T * scale + bias)) over the visible keys; a query without visible keys has weights 0."""
    k = repeat_heads(k, q.shape[1])
    scoring = (content.functions if content is not None else None) or ScoreFunctions()
    scores = scoring.compare(q, k, plan.scale)  # (B, H, T, S)
    dense: DensePlan = plan.kernel_data
    if dense.bias is not None:
        scores = scores + dense.bias
    if content is not None and content.bias is not None:
        scores = scores + content.bias(all_pairs(q, k, plan, content))
    if plan.soft_cap is not None:
        scores = plan.soft_cap * torch.tanh(scores / plan.soft_cap)
    if scoring.map_scores is not None:
        scores = scoring.map_scores(scores)
    if dense.seen is not None:
        # Finite, not -inf: a query without visible keys would be 0/0, and its gradient NaN.
        scores = scores.masked_fill(~dense.seen, torch.finfo(scores.dtype).min)
    weights = _softmax(scores, content.sinks if content is not None else None)
    if dense.seen is not None:
        weights = weights * dense.seen
    return weights if scoring.map_weights is None else scoring.map_weights(weights)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the keys, and over a sink if there is one, whose share is dropped."""
    if sinks is None:
        return scores.softmax(-1)
    sink = sinks.view(-1, 1, 1).expand(*scores.shape[:-1], 1)  # (H,) -> (B, H, T, 1)
    return torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
