"""Who sees whom: static visibility, and the one reference that turns it into a mask for any block of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from paribus.parts.batch import TokenLayout


class BlockPattern(NamedTuple):
    """Rows in blocks that see whole blocks: their neighbours, and some that are drawn once for all ("BigBird")."""

    size: int
    neighbors: int  # how many blocks to each side
    random_blocks: tuple[tuple[int, ...], ...]  # which others each block sees besides

    @property
    def max_random_blocks(self) -> int:
        """How many others any block sees besides its neighbours."""
        return max((len(others) for others in self.random_blocks), default=0)

    def random_block_table(self, device: torch.device) -> Tensor:
        """(N, most) int64: `drawn`, filled up with -1."""
        most = self.max_random_blocks
        filled = [[*others, *[-1] * (most - len(others))] for others in self.random_blocks]
        return torch.tensor(filled, dtype=torch.long, device=device).view(len(self.random_blocks), most)

    def visible_blocks(self, device: torch.device) -> Tensor:
        """(N, N) bool: which of the drawn blocks each block sees."""
        count, drawn = len(self.random_blocks), self.random_block_table(device)
        seen = torch.zeros(count, count + 1, dtype=torch.bool, device=device)  # what is none goes into the last column
        return seen.scatter(1, drawn.where(drawn >= 0, count), value=True)[:, :count]


class Visibility(NamedTuple):
    """What an attention declares of its visibility, before any row is known."""

    causal: bool = False
    window: int | None = None  # |i - j| < window; causal: 0 <= i - j < window
    dilation: int = 1  # of what is near, every so many-th row: |i - j| < window * dilation, and divisible by it
    global_tokens: int = 0  # so many first rows see all, and are seen by all, whatever is near
    blocks: BlockPattern | None = None  # what is near is measured in blocks

    @property
    def is_contiguous(self) -> bool:
        """Whether what a row sees is one unbroken stretch."""
        return self.dilation == 1 and not self.global_tokens and self.blocks is None

    def span(self, keys: int) -> int:
        """How many keys a query far from both ends sees, of `keys`."""
        if self.blocks is not None:
            sides = 1 if self.causal else 2
            return min(
                keys,
                self.blocks.size * (1 + sides * self.blocks.neighbors + self.blocks.max_random_blocks)
                + self.global_tokens,
            )
        if self.window is None:
            return keys
        return min(keys, (self.window if self.causal else 2 * self.window - 1) + self.global_tokens)

    def pairs(self, queries: int, keys: int) -> int:
        """How many pairs of a query and a key are looked at; first rows that have no future look at all keys."""
        whole = 0 if self.causal else min(self.global_tokens, queries)
        return whole * keys + (queries - whole) * self.span(keys)


def with_order(rows: TokenLayout, past: int = 0) -> TokenLayout:
    """`rows` with their order filled in: the row's own index, never its position (packed rows restart those)."""
    if rows.order is not None:
        return rows
    length = rows.positions.shape[-1]
    order = torch.arange(past, past + length, device=rows.positions.device).unsqueeze(0)
    return rows._replace(order=order)


def visibility_mask(sight: Visibility, q: TokenLayout, k: TokenLayout, *, by_row: bool = False) -> Tensor | None:
    """Which key each query sees, (B or 1, 1, T, S) bool; None where everybody sees everybody.

    A window is measured on positions, which skip the holes that padding leaves; `by_row` on rows, where nothing is
    left out and positions are free to mean something else.
    """
    found = relations(sight, q, k, by_row=by_row)
    if not found:
        return None
    mask = found[0].all()
    for relation in found[1:]:
        mask = mask & relation.all()
    return mask.unsqueeze(1)


class Relation(NamedTuple):
    """A number of each query, one of each key, and what must hold between two, whatever their shapes."""

    queries: Tensor  # (B|1, T)
    keys: Tensor  # (B|1, S)
    holds: Callable[[Tensor, Tensor], Tensor]

    def all(self) -> Tensor:
        """(B|1, T, S): of every query and every key."""
        return self.holds(self.queries.unsqueeze(-1), self.keys.unsqueeze(-2))


def relations(sight: Visibility, q: TokenLayout, k: TokenLayout, *, by_row: bool = False) -> list[Relation]:
    """Who sees whom, pair by pair: a key is seen where all of them hold; `by_row` as in `visibility_mask`."""
    found: list[Relation] = []
    if sight.causal:
        found.append(Relation(*_orders(q, k), lambda query, key: key <= query))
    if sight.window is not None or sight.blocks is not None:
        near = _orders(q, k) if by_row else (q.positions, k.positions)
        drawn = None if sight.blocks is None else sight.blocks.visible_blocks(k.positions.device)
        found.append(Relation(*near, lambda query, key: _near(sight, drawn, query, key)))
    if k.documents is not None:
        queries = q.documents if q.documents is not None else torch.zeros_like(q.positions)
        found.append(Relation(queries, k.documents, lambda query, key: (key == query) & (key >= 0)))
    return found


def _near(sight: Visibility, drawn: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """Which key is near each query, by whatever the sight calls near."""
    away = query - key
    if sight.blocks is not None:
        assert drawn is not None, "blocks are drawn"
        seen = _in_blocks(sight.blocks, drawn, query, key)
    else:
        assert sight.window is not None, "near means something"
        seen = away.abs() < sight.window * sight.dilation
        if sight.dilation > 1:
            seen = seen & (away % sight.dilation == 0)
    if sight.global_tokens:  # padding before a document has positions below 0
        seen = seen | ((query < sight.global_tokens) & (query >= 0)) | ((key < sight.global_tokens) & (key >= 0))
    return seen


def _in_blocks(blocks: BlockPattern, drawn: Tensor, query: Tensor, key: Tensor) -> Tensor:
    own, other = (torch.div(rows, blocks.size, rounding_mode="floor") for rows in (query, key))
    last = len(blocks.random_blocks) - 1
    return ((own - other).abs() <= blocks.neighbors) | drawn[own.clamp(0, last), other.clamp(0, last)]


def _orders(q: TokenLayout, k: TokenLayout) -> tuple[Tensor, Tensor]:
    assert q.order is not None, "kernels are given rows whose order is filled in"
    assert k.order is not None, "kernels are given rows whose order is filled in"
    return q.order, k.order
