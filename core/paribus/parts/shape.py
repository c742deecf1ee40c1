"""Shape of the place that a component is built for, roles of its parameters, and its cost for a load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class Shape:
    """Place that a component is built for; constant after assembly."""

    width: int  # width of the residual stream, D
    heads: int  # number of query heads, H
    head_width: int  # width of a head, K
    length: int  # longest sequence in training: dims.length
    vocabulary: int  # number of token ids, V
    layers: int  # layers of this stack
    layer: int | None = None  # None: shared by several layers, or outside of layers
    branches: int = 0  # residual branches of this stack, for initial weights that scale with depth
    stack: str = "body"  # path of this stack
    causal: bool = False  # positions of this stack see earlier ones only
    sublayers: tuple[str, ...] = ("attention", "feedforward")  # names of the sublayers of a layer, in order
    dropout: float = 0.0  # probability, for dropout within a component; layers drop the output of sublayers themselves
    cross_layers: int = 0  # number of layers of the stack that attends to this one
    memory_width: int | None = None  # cross-attention: width of the memory
    raw_memory: bool = False  # cross-attention without value and output projections
    unembed_width: int | None = None  # embedding: width of the hidden states it scores; 0: none
    table_width: int | None = None  # width of the embeddings, if not the width of the stream
    other_shapes: tuple[Shape, ...] = ()  # shapes of the other stacks, for an objective

    def shape_of(self, path: str) -> Shape:
        """Return the shape of the stack at `path`."""
        return next(shape for shape in self.other_shapes if shape.stack == path)

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings: positions are added at this width, and hidden states of this width are scored."""
        return self.table_width or self.width


Role = Literal[
    "query",  # scored against keys
    "key",
    "value",
    "residual",  # writes into the residual stream
    "inner",  # widens a feed-forward
    "embedding",  # a table that is looked up
    "head",  # an objective's own projection
    "weight",  # any other matrix
    "vector",  # a vector for each head or channel, all in one tensor
    "bias",  # starts at 0
    "gain",  # multiplies; starts at 1
]


class Cost(NamedTuple):
    """Cost of a component for a load: floating-point operations, and elements of decoding state.

    A multiply-add counts as two operations. Norms, softmax and activations count as none, as in torch's own counter.
    """

    flops: int = 0  # floating-point operations
    state: int = 0  # elements of decoding state

    def __add__(self, other: object) -> Cost:
        assert isinstance(other, Cost)
        return Cost(self.flops + other.flops, self.state + other.state)


class Load(NamedTuple):
    """Size of one sequence. A decoding step has `queries=1` and all the keys."""

    queries: int  # number of queries: more than keys if there are extra queries
    keys: int  # number of keys: all positions so far
    memory: int = 0  # positions of the memory that cross-attention reads
    head_positions: int = 0  # positions that the head of an objective runs on
