"""Values and the way back: what is left of heads where nothing is scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor, nn

from paribus import Role, Shape


@final
class Values(nn.Module):
    """`Heads` without queries and keys: the same tensors at the same paths, and so with the same draws.

    A memory that is read raw is its own values, and what they come to is given back as it is.
    """

    roles: ClassVar[Mapping[str, Role]] = {"v.weight": "value", "o.weight": "residual"}

    def __init__(self, shape: Shape, *, bias: bool) -> None:
        super().__init__()
        self.raw = shape.raw
        self.source, self.width = shape.memory_width or shape.width, shape.width
        self.inner = self.source if shape.raw else shape.heads * shape.head_width
        if not shape.raw:
            self.v = nn.Linear(self.source, self.inner, bias=bias)
            self.o = nn.Linear(self.inner, shape.width, bias=bias)

    def values(self, x: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, H*K)."""
        return x if self.raw else self.v(x)

    def merge(self, x: Tensor) -> Tensor:
        """(B, T, H*K) -> (B, T, D)."""
        return x if self.raw else self.o(x)

    def cost(self, keys: int, queries: int) -> int:
        """The operations of both projections."""
        return 0 if self.raw else 2 * self.inner * (keys * self.source + queries * self.width)
