"""Shape of the place that a component is built for, and roles of parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Shape:
    """Place that a component is built for; constant after assembly."""

    width: int
    heads: int
    head_width: int
    length: int
    vocabulary: int
    layers: int
    layer: int | None = None  # None: shared by several layers, or outside of layers
    branches: int = 0  # residual branches of this stack, for initial weights that scale with depth
    stack: str = "body"
    causal: bool = False
    sublayers: tuple[str, ...] = ("attention", "feedforward")
    dropout: float = 0.0
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
    "bias",  # starts at 0
    "gain",  # multiplies; starts at 1
]
