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
    window: int | None = None  # |i - j| < window; causal: 0 <= i - j < window

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


def visible(sight: Sight, q: Rows, k: Rows, *, by_row: bool = False) -> Tensor | None:
    """Which key each query sees, (B or 1, 1, T, S) bool; None where everybody sees everybody.

    A window is measured on positions, which skip the holes that padding leaves; `by_row` on rows, where nothing is
    left out and positions are free to mean something else.
    """
    seen: list[Tensor] = []
    if sight.causal:
        seen.append(_against(*_orders(q, k), lambda query, key: key <= query))
    if sight.window is not None:
        window = sight.window
        near = _orders(q, k) if by_row else (q.positions, k.positions)
        seen.append(_against(*near, lambda query, key: (query - key).abs() < window))
    if k.documents is not None:
        queries = q.documents if q.documents is not None else torch.zeros_like(q.positions)
        seen.append(_against(queries, k.documents, lambda query, key: (key == query) & (key >= 0)))
    if not seen:
        return None
    mask = seen[0]
    for other in seen[1:]:
        mask = mask & other
    return mask.unsqueeze(1)


def _orders(q: Rows, k: Rows) -> tuple[Tensor, Tensor]:
    assert q.order is not None, "kernels are given rows whose order is filled in"
    assert k.order is not None, "kernels are given rows whose order is filled in"
    return q.order, k.order


def _against(queries: Tensor, keys: Tensor, relation: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return relation(queries.unsqueeze(-1), keys.unsqueeze(-2))  # (B|1, T, 1), (B|1, 1, S) -> (B|1, T, S)
