"""Value and output projections, for attentions without scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor, nn

from paribus import Role, Shape


@final
class Values(nn.Module):
    """Value and output projections of `Heads`, with the same parameter paths and so the same initial weights.

    A raw memory provides the values, and its weighted sum is returned without an output projection.
    """

    roles: ClassVar[Mapping[str, Role]] = {"v.weight": "value", "o.weight": "residual"}

    def __init__(self, shape: Shape, *, bias: bool) -> None:
        super().__init__()
        self.raw = shape.raw_memory
        self.source, self.width = shape.memory_width or shape.width, shape.width
        self.inner = self.source if shape.raw_memory else shape.heads * shape.head_width
        if not shape.raw_memory:
            self.v = nn.Linear(self.source, self.inner, bias=bias)
            self.o = nn.Linear(self.inner, shape.width, bias=bias)

    def values(self, x: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, H*K)."""
        return x if self.raw else self.v(x)

    def merge(self, x: Tensor) -> Tensor:
        """(B, T, H*K) -> (B, T, D)."""
        return x if self.raw else self.o(x)

    def cost(self, keys: int, queries: int) -> int:
        """Return the operations of both projections."""
        return 0 if self.raw else 2 * self.inner * (keys * self.source + queries * self.width)
