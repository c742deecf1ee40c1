"""The slot `attention`: projections, head sharing, and who sees whom."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from paribus.parts.context import Context, State
from paribus.parts.shape import Shape
from paribus.slots.component import Component, Cost, Load


class Attention(Component, nn.Module, ABC):
    """Mixes rows: (B, T, D) -> (B, T, D), each row a weighting of the rows that it sees.

    A variant is a few lines. It gives its queries, keys and values to an `Attend`, says with a `Sight` who sees whom,
    and never handles masks, positions, caches or kernels:

        @final
        class MultiQuery(Attention):
            \"\"\"One key/value head for all query heads: "Fast Transformer Decoding" (Shazeer 2019).\"\"\"

            traits = SOFTMAX

            def __init__(self, shape: Shape, *, scores: Scores = Scores()) -> None:
                super().__init__()
                self.heads = Heads(shape, kv_heads=1, bias=scores.bias)
                self.attend = Attend(shape, Sight(causal=shape.causal), scores)

            def forward(self, x: Tensor, ctx: Context) -> Tensor:
                return self.heads.merge(self.attend(self.heads, x, ctx))

    Use `Heads` and not projections of your own wherever they fit: then swapping your variant for another leaves every
    tensor that both have bitwise equal, which is what makes the comparison fair.
    """

    injects: ClassVar[tuple[str, ...]] = ("shape",)

    @abstractmethod
    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""

    @abstractmethod
    def start(self, batch: int, length: int, like: Tensor) -> State:
        """Empty decoding state for `length` rows, batch first, on the device and of the dtype of `like`."""

    @abstractmethod
    def cost(self, load: Load) -> Cost:
        """What it does for one sequence. State is what decoding keeps for `load.keys` rows."""


def softmax_cost(shape: Shape, kv_heads: int, pairs: int, load: Load) -> Cost:
    """Projections, and 4 K operations a head for each pair of a query and a key that it sees."""
    heads_width = shape.heads * shape.head_width
    kv_width = kv_heads * shape.head_width
    source = shape.memory_width or shape.width
    rows_in = load.memory if shape.memory_width else load.queries
    projections = 2 * load.queries * shape.width * heads_width * 2 + 2 * rows_in * source * kv_width * 2
    kept = load.memory if shape.memory_width else load.keys
    return Cost(flops=projections + 4 * pairs * heads_width, state=2 * kept * kv_width)
