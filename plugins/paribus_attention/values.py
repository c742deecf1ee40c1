"""Values and the way back: what is left of heads where nothing is scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor, nn

from paribus import Role, Shape


@final
class Values(nn.Module):
    """`Heads` without queries and keys: the same tensors at the same paths, and so with the same draws."""

    roles: ClassVar[Mapping[str, Role]] = {"v.weight": "value", "o.weight": "residual"}

    def __init__(self, shape: Shape, *, bias: bool) -> None:
        super().__init__()
        self.inner = shape.heads * shape.head_width
        self.source = shape.memory_width or shape.width
        self.v = nn.Linear(self.source, self.inner, bias=bias)
        self.width = shape.width
        self.o = nn.Linear(self.inner, shape.width, bias=bias)

    def values(self, x: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, H*K)."""
        projected: Tensor = self.v(x)
        return projected

    def merge(self, x: Tensor) -> Tensor:
        """(B, T, H*K) -> (B, T, D)."""
        merged: Tensor = self.o(x)
        return merged
