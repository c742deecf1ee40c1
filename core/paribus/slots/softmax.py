"""Traits, cache and cost that softmax attentions share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from paribus.parts.context import State
from paribus.parts.shape import Cost, Load, Shape
from paribus.parts.visibility import Visibility
from paribus.slots.attention import AttentionTraits

if TYPE_CHECKING:
    from torch import Tensor

SOFTMAX_TRAITS: Final[AttentionTraits] = {
    "position_hooks": ["rotate", "bias", "mix", "read"],
    "causal": True,
    "cross": True,
    "documents": True,
    "order": True,
    "extra_queries": True,
    "residual": True,
    "raw_memory": True,
    "weights": True,
    "normalized": True,
    "decodes": True,
}
"""Traits of an attention that consists of `Heads` and `Attend`."""


def visibility_of(shape: Shape, window: int | None = None) -> Visibility:
    """Return the visibility at this place of a model. Cross-attention is never causal."""
    return Visibility(causal=shape.causal and shape.memory_width is None, window=window)


def empty_cache(shape: Shape, kv_heads: int, batch: int, length: int, like: Tensor) -> State:
    """Return a cache for `length` keys and values; empty for cross-attention, whose keys are stored when they are
    computed.
    """
    if shape.memory_width is not None:
        return {}
    size = (batch, kv_heads, length, shape.head_width)  # (B, G, L, K)
    return {"k": like.new_zeros(size), "v": like.new_zeros(size)}


def softmax_cost(shape: Shape, kv_heads: int, sight: Visibility, load: Load) -> Cost:
    """Return the cost of the projections, plus 4 K operations per head for each pair of a query and a key in its
    window.

    Keys in the future count as well: kernels compute most of them, and torch's counter counts them.
    """
    keys = load.keys if shape.memory_width is None else load.memory
    fresh = min(load.queries, load.keys) if shape.memory_width is None else load.memory
    heads_width, kv_width = shape.heads * shape.head_width, kv_heads * shape.head_width
    source = shape.memory_width or shape.width
    if (
        shape.raw_memory
    ):  # no value and output projections: the columns of the memory are split among the key/value heads
        wide = shape.heads * (source // kv_heads)
        projections = 2 * load.queries * shape.width * heads_width + 2 * fresh * source * kv_width
        scores = 2 * sight.pairs(load.queries, keys) * (heads_width + wide)
        return Cost(flops=projections + scores, state=keys * (kv_width + source))
    projections = 4 * load.queries * shape.width * heads_width + 4 * fresh * source * kv_width
    scores = 4 * sight.pairs(load.queries, keys) * heads_width
    return Cost(flops=projections + scores, state=2 * keys * kv_width)
