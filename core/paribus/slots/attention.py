"""Slot `attention`: projections, sharing of heads, and which keys each query sees.

The functions below the contract are the traits, cache and cost that softmax attentions share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final, Literal

from torch import Tensor, nn

from paribus.parts.context import Context, State
from paribus.parts.shape import Cost, Load, Shape
from paribus.parts.visibility import Visibility
from paribus.slots.component import Component, Traits


class AttentionTraits(Traits, total=False):
    """Traits of an attention. A missing flag is False unless its comment states another default."""

    position_hooks: list[str]  # hooks of a position that it calls: rotate, bias, mix; `read`: a bias may read its heads
    causal: bool  # can be made causal
    bidirectional: bool  # can read later tokens; default: True (False: valid in causal stacks only)
    cross: bool  # can attend to a memory
    documents: bool  # separates documents that are packed into one sequence, and ignores padding
    padding: bool  # ignores padding; implied by `documents`
    reads_keys: Literal["all", "one", "none"]  # number of visible keys that a query reads; default: all
    content_based: bool  # the keys that a query reads depend on the query's content; default: True
    order: bool  # follows an explicit order of positions (permutation, prefix)
    extra_queries: bool  # accepts more queries than keys: queries after the last key, visible to no query
    separate_inputs: bool  # reads the inputs of keys and values in its context, as `Attend` does
    residual: bool  # output has the width of the residual stream, so that a placement can wrap it
    raw_memory: bool  # can return a weighted mean of the memory itself, without value and output projections
    weights: bool  # can return its attention weights, (B, H, T, S)
    normalized: bool  # weights are not negative, and the weights of a query sum to 1 (to less with attention sinks)
    table: bool  # cannot read positions beyond dims.length
    needs: list[str]  # `layer`: an instance for each layer; `inputs`: the embedded tokens, in its context
    decodes: bool  # supports step-by-step decoding with a state


class Attention(Component, nn.Module, ABC):
    """Attention sublayer: (B, T, D) -> (B, T, D), each output a weighted mean over the visible positions.

    A variant is a few lines. It passes queries, keys and values to an `Attend`, declares with a `Visibility` which keys
    each query sees, and never handles masks, positions, caches or kernels:

        @final
        class MultiQuery(Attention):
            \"\"\"One key/value head for all query heads: "Fast Transformer Decoding" (Shazeer 2019).\"\"\"

            traits = SOFTMAX_TRAITS

            def __init__(self, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
                super().__init__()
                self.shape = shape
                self.heads = Heads(shape, kv_heads=1, bias=scores.bias)
                self.attend = Attend(shape, visibility_of(shape), scores)

            def forward(self, x: Tensor, ctx: Context) -> Tensor:
                return self.heads.merge(self.attend(self.heads, x, ctx))

            def start(self, batch: int, length: int, like: Tensor) -> State:
                return empty_cache(self.shape, 1, batch, length, like)

            def cost(self, load: Load) -> Cost:
                return softmax_cost(self.shape, 1, self.attend.visibility, load)

    Use `Heads` instead of own projections wherever it fits: two variants then share every tensor that both have, bit
    for bit, so that a comparison of them is fair.
    """

    injects: ClassVar[tuple[str, ...]] = ("shape",)
    traits: ClassVar[AttentionTraits] = {}

    @abstractmethod
    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """Return the output of the sublayer: (B, T, D) -> (B, T, D)."""

    @abstractmethod
    def start(self, batch: int, length: int, like: Tensor) -> State:
        """Return an empty decoding state for `length` positions, batch first, of the device and dtype of `like`."""

    @abstractmethod
    def cost(self, load: Load) -> Cost:
        """Return the cost of one sequence, without the gates of its `Attend`; `state` counts the elements stored for
        `load.keys` positions.
        """


SOFTMAX_TRAITS: Final[AttentionTraits] = {
    "position_hooks": ["rotate", "bias", "mix", "read"],
    "causal": True,
    "cross": True,
    "documents": True,
    "order": True,
    "extra_queries": True,
    "separate_inputs": True,
    "residual": True,
    "raw_memory": True,
    "weights": True,
    "normalized": True,
    "decodes": True,
}
"""Traits of an attention that consists of `Heads` and `Attend`."""

RECURRENCE_TRAITS: Final[AttentionTraits] = {
    "position_hooks": [],
    "causal": True,
    "bidirectional": False,
    "cross": False,
    "documents": True,
    "order": False,
    "residual": True,
    "weights": False,
    "decodes": True,
}
"""Traits of an attention that is a `MatrixRecurrence`."""


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


def softmax_cost(shape: Shape, kv_heads: int, visibility: Visibility, load: Load) -> Cost:
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
        scores = 2 * visibility.pairs(load.queries, keys) * (heads_width + wide)
        return Cost(flops=projections + scores, state=keys * (kv_width + source))
    projections = 4 * load.queries * shape.width * heads_width + 4 * fresh * source * kv_width
    scores = 4 * visibility.pairs(load.queries, keys) * heads_width
    return Cost(flops=projections + scores, state=2 * keys * kv_width)
