"""Heads that score unprojected tokens, for `dot` and `bilinear`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor, nn

from paribus import Cost, Load, Role, Shape, Visibility, softmax_cost


@final
class UnprojectedHeads(nn.Module):
    """Heads whose keys are slices of the tokens' channels, and whose queries are too unless `project_queries`.

    Projections have the same parameter paths as in other attentions. A raw memory also provides the values, and its
    weighted sum is returned without an output projection.
    """

    roles: ClassVar[Mapping[str, Role]] = {"q.weight": "query", "v.weight": "value", "o.weight": "residual"}

    def __init__(self, shape: Shape, *, project_queries: bool, bias: bool) -> None:
        super().__init__()
        self.shape = shape
        self.projects_queries = project_queries
        source, all_heads = shape.memory_width or shape.width, shape.heads * shape.head_width
        for side, width, unprojected in (("keys", source, True), ("queries", shape.width, not project_queries)):
            if unprojected and width != all_heads:
                raise ValueError(
                    f"{side} are not projected, so their width must be heads * head_width = {all_heads}, got {width}"
                )
        if project_queries:
            self.q = nn.Linear(shape.width, all_heads, bias=bias)
        if not shape.raw_memory:
            self.v = nn.Linear(source, all_heads, bias=bias)
            self.o = nn.Linear(all_heads, shape.width, bias=bias)

    def queries(self, x: Tensor) -> Tensor:
        return self.split(self.q(x) if self.projects_queries else x)

    def keys(self, x: Tensor) -> Tensor:
        return self.split(x)

    def values(self, x: Tensor) -> Tensor:
        return self.split(x if self.shape.raw_memory else self.v(x))

    def project(self, table: Tensor) -> tuple[Tensor, Tensor]:
        return self.queries(table), self.keys(table)

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H*K) -> (B, H, T, K)."""
        headed = x.view(*x.shape[:-1], self.shape.heads, self.shape.head_width)
        return headed.transpose(-3, -2)

    def merge(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> (B, T, D)."""
        merged = x.transpose(1, 2).flatten(-2)
        return merged if self.shape.raw_memory else self.o(merged)

    def cost(self, visibility: Visibility, load: Load) -> Cost:
        """Return the cost of multi-head attention less that of the missing projections."""
        shape = self.shape
        fresh = min(load.queries, load.keys) if shape.memory_width is None else load.memory
        plain = softmax_cost(shape, shape.heads, visibility, load)
        saved = 2 * fresh * (shape.memory_width or shape.width) + (
            0 if self.projects_queries else 2 * load.queries * shape.width
        )
        return plain._replace(flops=plain.flops - saved * shape.heads * shape.head_width)


def match_head_width(shape: Shape) -> Shape:
    """Return the shape with heads as wide as their slices of a raw memory."""
    if not shape.raw_memory or shape.memory_width is None:
        return shape
    return dataclasses.replace(shape, head_width=shape.memory_width // shape.heads)
