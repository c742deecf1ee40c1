"""Attention weights as the papers write them: the reference that every kernel is held against."""

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
    """Visibility and position bias for all queries and keys at once."""

    seen: Tensor | None  # (B|1, 1, T, S) bool
    bias: Tensor | None  # (B|1, H, T, S)


def require_attention_weights(attentions: Sequence[Attention]) -> None:
    """One of them at least has weights; beside it, one that has none gives none."""
    if any(attention.traits.get("weights", False) for attention in attentions):
        return
    kinds = ", ".join(dict.fromkeys(type(attention).__name__ for attention in attentions))
    raise ValueError(
        f"there are no attention weights to show: {kinds or 'nothing here'} cannot say how much a row weighs another; "
        "valid: an attention with the trait `weights`"
    )


def dense_plan(plan: AttentionPlan, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor) -> DensePlan:
    """The dense form of a plan, made once a forward pass."""
    added = None
    if bias is not None:
        pair = Pair(None, None, plan.q.positions, plan.k.positions, plan.scale, heads, dtype=like.dtype)
        added = bias(pair).to(like.dtype)
    by_row = plan.k.documents is None and not plan.request.has_order
    return DensePlan(visibility_mask(plan.request.visibility, plan.q, plan.k, by_row=by_row), added)


def all_pairs(q: Tensor, k: Tensor, plan: AttentionPlan, content: LayerScoring) -> Pair:
    """All queries against all keys, as a position's bias or mix is shown them."""
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
    """softmax(cap(q k^T * scale + bias)) over the keys that are seen; a query that sees none weighs all with 0."""
    k = repeat_heads(k, q.shape[1])
    scoring = (content.functions if content is not None else None) or ScoreFunctions()
    scores = scoring.compare(q, k, plan.scale)  # (B, H, T, S)
    made: DensePlan = plan.kernel_data
    if made.bias is not None:
        scores = scores + made.bias
    if content is not None and content.bias is not None:
        scores = scores + content.bias(all_pairs(q, k, plan, content))
    if plan.soft_cap is not None:
        scores = plan.soft_cap * torch.tanh(scores / plan.soft_cap)
    if scoring.map_scores is not None:
        scores = scoring.map_scores(scores)
    if made.seen is not None:
        # Finite, not -inf: a row that sees nothing would be 0/0, and its gradient NaN wherever it is used.
        scores = scores.masked_fill(~made.seen, torch.finfo(scores.dtype).min)
    weights = _softmax(scores, content.sinks if content is not None else None)
    if made.seen is not None:
        weights = weights * made.seen
    return weights if scoring.map_weights is None else scoring.map_weights(weights)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Over the keys, and over a sink behind them where there is one, whose share goes nowhere."""
    if sinks is None:
        return scores.softmax(-1)
    sink = sinks.view(-1, 1, 1).expand(*scores.shape[:-1], 1)  # (H,) -> (B, H, T, 1)
    return torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
