"""The slot `attention`: projections, head sharing, and who sees whom."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from paribus.parts.context import Context, State
from paribus.slots.component import Component, Cost, Load


class Attention(Component, nn.Module, ABC):
    """Mixes rows: (B, T, D) -> (B, T, D), each row a weighting of the rows that it sees.

    A variant is a few lines. It passes queries, keys and values to an `Attend`, declares with a `Visibility` which keys
    each query sees, and never handles masks, positions, caches or kernels:

        @final
        class MultiQuery(Attention):
            \"\"\"One key/value head for all query heads: "Fast Transformer Decoding" (Shazeer 2019).\"\"\"

            traits = SOFTMAX

            def __init__(self, shape: Shape, *, scores: Scores = Scores()) -> None:
                super().__init__()
                self.shape = shape
                self.heads = Heads(shape, kv_heads=1, bias=scores.bias)
                self.attend = Attend(shape, sight_of(shape), scores)

            def forward(self, x: Tensor, ctx: Context) -> Tensor:
                return self.heads.merge(self.attend(self.heads, x, ctx))

            def start(self, batch: int, length: int, like: Tensor) -> State:
                return empty_cache(self.shape, 1, batch, length, like)

            def cost(self, load: Load) -> Cost:
                return softmax_cost(self.shape, 1, self.attend.visibility, load)

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
