"""What a component is told of its surroundings, so that a spec never repeats it.

What a parameter is for, as an initialisation is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Shape:
    """The place that a component is built for. It never changes after assembly."""

    width: int
    heads: int
    head_width: int
    length: int
    vocabulary: int
    layers: int
    layer: int | None = None  # None: one instance serves several layers, or stands outside of them
    branches: int = 0  # residual branches of this stack, for the initialisations that scale by depth
    stack: str = "body"
    causal: bool = False
    sublayers: tuple[str, ...] = ("attention", "feedforward")
    dropout: float = 0.0
    cross_layers: int = 0  # layers of the stack that attends to this one; 0: none does
    memory_width: int | None = None  # set where this is cross-attention: the width of what is attended to
    raw_memory: bool = (
        False  # a memory is read as it stands: values are its rows, and what is made of them is given back
    )
    unembed_width: int | None = (
        None  # an embedding's: the width of the rows that it scores, where not its own; 0: of none
    )
    table_width: int | None = None  # that of the embedding's rows, where it is not the width of the stream

    other_shapes: tuple[
        Shape, ...
    ] = ()  # those of the topology's other stacks, for an objective, which may read several

    def shape_of(self, path: str) -> Shape:
        """The shape of the stack at `path`."""
        return next(shape for shape in self.other_shapes if shape.stack == path)

    @property
    def embedding_width(self) -> int:
        """The width of rows as the embedding has them: positions are placed on such, and such are scored."""
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
