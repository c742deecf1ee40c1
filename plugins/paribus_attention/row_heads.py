"""Heads that compare rows as they are, for `dot` and `bilinear`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor, nn

from paribus import Cost, Load, Role, Shape, Visibility, softmax_cost


@final
class RowHeads(nn.Module):
    """Heads whose keys are the rows' own columns, a stretch for each head, and their queries too unless `asks`.

    What is projected is at the paths that other attentions have it at. Of a memory that is read raw, values are its
    own columns as well, and what they come to is given back as it is.
    """

    roles: ClassVar[Mapping[str, Role]] = {"q.weight": "query", "v.weight": "value", "o.weight": "residual"}

    def __init__(self, shape: Shape, *, asks: bool, bias: bool) -> None:
        super().__init__()
        self.shape = shape
        self.asks = asks
        source, all_heads = shape.memory_width or shape.width, shape.heads * shape.head_width
        for whose, width, given in (("keys", source, True), ("queries", shape.width, not asks)):
            if given and width != all_heads:
                raise ValueError(
                    f"{whose} are the rows' own columns, of which there are {width}, but the {shape.heads} heads of "
                    f"{shape.head_width} take {all_heads}; valid: as many"
                )
        if asks:
            self.q = nn.Linear(shape.width, all_heads, bias=bias)
        if not shape.raw:
            self.v = nn.Linear(source, all_heads, bias=bias)
            self.o = nn.Linear(all_heads, shape.width, bias=bias)

    def queries(self, x: Tensor) -> Tensor:
        return self.split(self.q(x) if self.asks else x)

    def keys(self, x: Tensor) -> Tensor:
        return self.split(x)

    def values(self, x: Tensor) -> Tensor:
        return self.split(x if self.shape.raw else self.v(x))

    def project(self, table: Tensor) -> tuple[Tensor, Tensor]:
        return self.queries(table), self.keys(table)

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H*K) -> (B, H, T, K)."""
        headed = x.view(*x.shape[:-1], self.shape.heads, self.shape.head_width)
        return headed.transpose(-3, -2)

    def merge(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> (B, T, D)."""
        merged = x.transpose(1, 2).flatten(-2)
        return merged if self.shape.raw else self.o(merged)

    def cost(self, sight: Visibility, load: Load) -> Cost:
        """What plain heads cost, less the projections that are not there."""
        shape = self.shape
        fresh = min(load.queries, load.keys) if shape.memory_width is None else load.memory
        plain = softmax_cost(shape, shape.heads, sight, load)
        spared = 2 * fresh * (shape.memory_width or shape.width) + (0 if self.asks else 2 * load.queries * shape.width)
        return plain._replace(flops=plain.flops - spared * shape.heads * shape.head_width)


def own_columns(shape: Shape) -> Shape:
    """A place whose heads are as wide as their stretches of a memory's columns, where that is read raw."""
    if not shape.raw or shape.memory_width is None:
        return shape
    return dataclasses.replace(shape, head_width=shape.memory_width // shape.heads)
