"""Visibility of keys to queries: declaration, and the reference mask for any block of positions."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

import torch
from torch import Tensor

from paribus.parts.batch import TokenLayout
from paribus.parts.constant_tensor import ConstantTensor

LAST: Final = 1 << 62  # after every order


class BlockPattern(NamedTuple):
    """Block-sparse pattern: each block sees its neighbors, and some random blocks that are drawn once ("BigBird")."""

    size: int  # tokens of a block
    neighbors: int  # number of blocks to each side
    random_blocks: tuple[tuple[int, ...], ...]  # further blocks that each block sees

    @property
    def max_random_blocks(self) -> int:
        """Largest number of random blocks that a block sees."""
        return max((len(blocks) for blocks in self.random_blocks), default=0)

    def random_block_table(self, like: Tensor) -> Tensor:
        """Return `random_blocks` as (N, max_random_blocks) int64 on the device of `like`, padded with -1."""
        table = _table_of(self) if torch.compiler.is_compiling() else _cached_table(self)
        return table.like(like).view(len(self.random_blocks), self.max_random_blocks)

    def visible_blocks(self, like: Tensor) -> Tensor:
        """Return which random blocks each block sees, (N, N) bool on the device of `like`."""
        count, table = len(self.random_blocks), self.random_block_table(like)
        is_visible = torch.zeros(count, count + 1, dtype=torch.bool, device=like.device)  # -1: in the last column
        return is_visible.scatter(1, table.where(table >= 0, count), value=True)[:, :count]


def _table_of(pattern: BlockPattern) -> ConstantTensor:
    columns = pattern.max_random_blocks
    return ConstantTensor([[*blocks, *[-1] * (columns - len(blocks))] for blocks in pattern.random_blocks], torch.long)


_cached_table = lru_cache(maxsize=256)(_table_of)  # torch.compile would warn that it ignores the cache


class Visibility(NamedTuple):
    """Keys that each query sees, as an attention declares it; an `Attend` masks the others.

    `Attend(shape, visibility_of(shape), scores)` sees all keys, or the earlier ones in a causal stack, and
    `visibility_of(shape, window)` those nearby. Other patterns set more fields:

        visibility_of(shape)._replace(window=64, global_tokens=1)

    Padding, other documents, and tokens that are later in an explicit order (`TokenLayout.order`) are masked in
    addition, whatever an attention declares. The mask of a declaration is (B|1, 1, T, S) bool, or None if every key is
    visible:

        visibility_mask(visibility, with_order(ctx.layout, ctx.past), with_order(ctx.key_layout))

    An attention needs this mask only if it has no `Attend`. A pattern that depends on the content of a query is a
    `map_scores` of `ScoreFunctions`; `chosen` declares its size, for the cost, and masks nothing.
    """

    causal: bool = False  # a query sees keys of at most its own order
    window: int | None = None  # |i - j| < window; causal: 0 <= i - j < window
    dilation: int = 1  # |i - j| < window * dilation, and divisible by it
    global_tokens: int = 0  # the first tokens see all and are seen by all
    blocks: BlockPattern | None = None  # block-sparse instead of a window
    chosen: int | None = None  # keys that a query reads at most, of those it sees; its content decides which

    @property
    def is_contiguous(self) -> bool:
        """True if a query sees one contiguous range of keys."""
        return self.dilation == 1 and not self.global_tokens and self.blocks is None

    def span(self, keys: int) -> int:
        """Return the number of keys, of `keys`, that a query far from both ends sees."""
        if self.blocks is not None:
            sides = 1 if self.causal else 2
            return min(
                keys,
                self.blocks.size * (1 + sides * self.blocks.neighbors + self.blocks.max_random_blocks)
                + self.global_tokens,
            )
        if self.window is None:
            return keys if self.chosen is None else min(keys, self.chosen)
        return min(keys, (self.window if self.causal else 2 * self.window - 1) + self.global_tokens)

    def pairs(self, queries: int, keys: int) -> int:
        """Return the number of (query, key) pairs that are computed; global tokens that are not causal see all keys."""
        global_queries = 0 if self.causal else min(self.global_tokens, queries)
        return global_queries * keys + (queries - global_queries) * self.span(keys)


def with_order(layout: TokenLayout, past: int = 0) -> TokenLayout:
    """Return the layout with its order set: the index of a token, not its position (packed documents restart
    positions).
    """
    if layout.order is not None:
        return layout
    if layout.index_positions is not None:
        return layout._replace(order=layout.index_positions)
    length = layout.positions.shape[-1]
    order = torch.arange(past, past + length, device=layout.positions.device).unsqueeze(0)
    return layout._replace(order=order)


def visibility_mask(
    visibility: Visibility, queries: TokenLayout, keys: TokenLayout, *, window_by_index: bool = False
) -> Tensor | None:
    """Return which keys each query sees, (B or 1, 1, T, S) bool, or None if all queries see all keys.

    A window is measured on positions, which skip padding; with `window_by_index` on indices, if no token is skipped and
    positions may mean something else.
    """
    conditions = pair_conditions(visibility, queries, keys, window_by_index=window_by_index)
    if not conditions:
        return None
    mask = conditions[0].all()
    for relation in conditions[1:]:
        mask = mask & relation.all()
    return mask.unsqueeze(1)


class PairCondition(NamedTuple):
    """Condition on a query and a key: one number per query, one per key, and a predicate that broadcasts."""

    queries: Tensor  # (B|1, T)
    keys: Tensor  # (B|1, S)
    holds: Callable[[Tensor, Tensor], Tensor]

    def all(self) -> Tensor:
        """Return the condition for every query and every key, (B|1, T, S)."""
        return self.holds(self.queries.unsqueeze(-1), self.keys.unsqueeze(-2))


def pair_conditions(
    visibility: Visibility, q: TokenLayout, k: TokenLayout, *, window_by_index: bool = False
) -> list[PairCondition]:
    """Return the conditions under which a query sees a key; all must hold. Options as in `visibility_mask`."""
    conditions: list[PairCondition] = []
    if visibility.causal:
        conditions.append(PairCondition(*_order_of_both(q, k), _is_reached))
    if visibility.window is not None or visibility.blocks is not None:
        indices = _order_of_both(q, k) if window_by_index else (q.positions, k.positions)
        random_blocks = None if visibility.blocks is None else visibility.blocks.visible_blocks(k.positions)
        conditions.append(PairCondition(*indices, lambda query, key: _is_near(visibility, random_blocks, query, key)))
    if k.documents is not None:
        queries = q.documents if q.documents is not None else torch.zeros_like(q.positions)
        conditions.append(PairCondition(queries, k.documents, lambda query, key: (key == query) & (key >= 0)))
    return conditions


def _is_reached(query: Tensor, key: Tensor) -> Tensor:
    """Return which keys each query sees by their orders, of which those below 0 are of copies."""
    latest = torch.where(query < 0, -2 - query, query)
    return (key.where(key >= 0, LAST) <= latest) | (key == query)


def _is_near(visibility: Visibility, random_blocks: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """Return which keys are in the window or the blocks of each query, or global."""
    offset = query - key
    if visibility.blocks is not None:
        assert random_blocks is not None, "expected a table of random blocks"
        is_near = _is_in_near_block(visibility.blocks, random_blocks, query, key)
    else:
        assert visibility.window is not None, "expected a window or blocks"
        is_near = offset.abs() < visibility.window * visibility.dilation
        if visibility.dilation > 1:
            is_near = is_near & (offset % visibility.dilation == 0)
    if visibility.global_tokens:  # padding before a document has positions below 0
        is_near = (
            is_near
            | ((query < visibility.global_tokens) & (query >= 0))
            | ((key < visibility.global_tokens) & (key >= 0))
        )
    return is_near


def _is_in_near_block(blocks: BlockPattern, random_blocks: Tensor, query: Tensor, key: Tensor) -> Tensor:
    query_block, key_block = (torch.div(index, blocks.size, rounding_mode="floor") for index in (query, key))
    last_block = len(blocks.random_blocks) - 1
    return ((query_block - key_block).abs() <= blocks.neighbors) | random_blocks[
        query_block.clamp(0, last_block), key_block.clamp(0, last_block)
    ]


def _order_of_both(q: TokenLayout, k: TokenLayout) -> tuple[Tensor, Tensor]:
    assert q.order is not None, "expected a layout with an order"
    assert k.order is not None, "expected a layout with an order"
    return q.order, k.order
