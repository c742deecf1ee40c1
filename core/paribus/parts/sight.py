"""Who sees whom: static visibility, and the one reference that turns it into a mask for any block of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from paribus.parts.rows import Rows


class Sight(NamedTuple):
    """What an attention declares of its visibility, before any row is known."""

    causal: bool = False
    window: int | None = None  # |i - j| < window, measured on positions; causal: 0 <= i - j < window

    def span(self, keys: int) -> int:
        """How many keys a query far from both ends sees, of `keys`."""
        if self.window is None:
            return keys
        return min(keys, self.window if self.causal else 2 * self.window - 1)


def ordered(rows: Rows, past: int = 0) -> Rows:
    """`rows` with their order filled in: the row's own index, never its position (packed rows restart those)."""
    if rows.order is not None:
        return rows
    length = rows.positions.shape[-1]
    order = torch.arange(past, past + length, device=rows.positions.device).unsqueeze(0)
    return rows._replace(order=order)


def visible(sight: Sight, q: Rows, k: Rows) -> Tensor | None:
    """Which key each query sees, (B or 1, 1, T, S) bool; None where everybody sees everybody."""
    seen: list[Tensor] = []
    if sight.causal:
        assert q.order is not None, "kernels are given rows whose order is filled in"
        assert k.order is not None, "kernels are given rows whose order is filled in"
        seen.append(_against(k.order, q.order, lambda key, query: key <= query))
    if sight.window is not None:
        window = sight.window
        seen.append(_against(k.positions, q.positions, lambda key, query: (query - key).abs() < window))
    if k.documents is not None:
        queries = q.documents if q.documents is not None else torch.zeros_like(q.positions)
        seen.append(_against(k.documents, queries, lambda key, query: (key == query) & (key >= 0)))
    if not seen:
        return None
    mask = seen[0]
    for other in seen[1:]:
        mask = mask & other
    return mask.unsqueeze(1)


_Relation = Callable[[Tensor, Tensor], Tensor]


def _against(keys: Tensor, queries: Tensor, relation: _Relation) -> Tensor:
    return relation(keys.unsqueeze(-2), queries.unsqueeze(-1))  # (B|1, 1, S), (B|1, T, 1) -> (B|1, T, S)
