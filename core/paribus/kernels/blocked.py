"""Kernel `blocked`: windowed attention in time and memory O(n r), in plain torch.

Queries are cut into blocks, and each block attends to one contiguous stretch of keys within its reach. Stretches
overlap, so they are a view of the keys; a gather of the keys of each query would be linear too, but 90 times slower. A
document is a contiguous run of tokens with increasing positions, so tokens near by position are near by index.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from paribus.kernels.sdpa import additive_mask, fused_attention, with_sinks
from paribus.parts.attend import DensePlan
from paribus.parts.batch import PADDING, TokenLayout
from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring, Pair
from paribus.parts.visibility import Visibility, visibility_mask


class Grid(NamedTuple):
    """Sizes of blocks: `size` queries, and keys from `left` before the block to `right` after it."""

    size: int
    left: int
    right: int

    @property
    def stretch(self) -> int:
        return self.left + self.size + self.right

    def count(self, length: int) -> int:
        return -(-length // self.size)


class BlockedMask(NamedTuple):
    """Grid, and the mask of each block of queries over its stretch of keys (W)."""

    grid: Grid
    mask: Tensor  # (B * blocks, H|1, size, W), added to the scores: -inf where a key is not visible


@final
class Blocked:
    """`scaled_dot_product_attention` of blocks of queries over their stretches of keys."""

    name = "blocked"

    def serves(self, request: KernelRequest) -> bool:
        if request.visibility.window is None or not request.visibility.is_contiguous:
            return False
        if not request.aligned or request.has_order or request.bias == "content":
            return False
        if request.needs_weights or request.has_mix or request.soft_cap or request.has_score_functions:
            return False
        # For fewer queries, a mask is faster.
        return request.queries == 0 or request.queries >= 2 * grid_of(request.visibility).stretch

    def prepare(
        self, plan: AttentionPlan, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor
    ) -> BlockedMask:
        grid = grid_of(plan.request.visibility)
        q, k = _blocks(plan.q, grid)
        offset = None
        if bias is not None:
            pair = Pair(None, None, q.positions, k.positions, plan.scale, heads, dtype=like.dtype)
            offset = bias(pair).to(like.dtype)
        window_by_index = plan.k.documents is None  # as for the whole: within blocks, only padding has a document
        mask = additive_mask(
            DensePlan(visibility_mask(plan.request.visibility, q, k, window_by_index=window_by_index), offset),
            like.dtype,
        )
        assert mask is not None, "padding is hidden, so there is a mask"
        blocks = grid.count(like.shape[1])
        return BlockedMask(
            grid, mask if mask.shape[0] == blocks * like.shape[0] else mask.repeat(like.shape[0], 1, 1, 1)
        )

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, content: LayerScoring | None, dropout: float
    ) -> Tensor:
        """(B, H, T, K), (B, G, T, K), (B, G, T, K) -> (B, H, T, K)."""
        grid, mask = plan.kernel_data
        batch, heads, length, width = q.shape
        blocks = grid.count(length)
        padded = functional.pad(q.transpose(1, 2), (0, 0, 0, 0, 0, blocks * grid.size - length))
        queries = padded.reshape(batch * blocks, grid.size, heads, width).transpose(1, 2)
        keys, values = key_windows(k, grid), key_windows(v, grid)
        if content is not None and content.sinks is not None:
            keys, values, mask = with_sinks(keys, values, mask, content.sinks, grid.size)
        mixed = fused_attention(queries, keys, values, mask, plan.scale, dropout)  # (B * blocks, H, size, K)
        return mixed.transpose(1, 2).reshape(batch, -1, heads, v.shape[-1])[:, :length].transpose(1, 2)


def grid_of(visibility: Visibility) -> Grid:
    """Return a grid with blocks of half the window's span, between wasted pairs and many small products."""
    assert visibility.window is not None, "this kernel requires a window"
    reach = visibility.window - 1
    span = reach if visibility.causal else 2 * reach
    size = 2 ** round(math.log2(max(span, 1) / 2))
    side = -(-reach // _ALIGNED) * _ALIGNED
    return Grid(min(max(size, 32), 128), side, 0 if visibility.causal else side)


_ALIGNED = 16  # alignment of a mask, for vector units


def _blocks(layout: TokenLayout, grid: Grid) -> tuple[TokenLayout, TokenLayout]:
    """Return tokens as blocks of queries and stretches of keys: (B|1 * blocks, size) and (…, W).

    Tokens outside the sequence are padding, whose positions continue in both directions.
    """
    length = layout.positions.shape[-1]
    index = torch.arange(-grid.left, grid.count(length) * grid.size + grid.right, device=layout.positions.device)
    nearest = index.clamp(0, length - 1)
    positions = layout.positions[:, nearest] + (index - nearest)
    documents = torch.zeros_like(positions) if layout.documents is None else layout.documents[:, nearest]
    documents = documents.where(index == nearest, PADDING)
    batch = max(positions.shape[0], documents.shape[0])
    padded = [vector.expand(batch, -1) for vector in (positions, documents, index.unsqueeze(0))]
    inner = slice(grid.left, index.shape[0] - grid.right)
    queries = [vector[:, inner].reshape(-1, grid.size) for vector in padded]
    keys = [vector.unfold(-1, grid.stretch, grid.size).flatten(0, 1) for vector in padded]
    return TokenLayout(*queries), TokenLayout(*keys)


def key_windows(x: Tensor, grid: Grid) -> Tensor:
    """(B, G, T, K) -> (B * blocks, G, W, K): the keys within reach of each block, as a view of one padded copy."""
    if torch.compiler.is_compiling():  # torch.compile derives an equally fast backward, and warns about a Function
        return unfolded_windows(x, grid)
    windows: Tensor = _KeyWindows.apply(x, grid)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return windows


def unfolded_windows(x: Tensor, grid: Grid) -> Tensor:
    """Return the same as `key_windows`, by `unfold` of the concatenated tokens of a batch."""
    _, groups, length, width = x.shape
    padded = functional.pad(x.transpose(1, 2), (0, 0, 0, 0, 0, grid.count(length) * grid.size - length))
    joined = functional.pad(padded.reshape(-1, groups, width), (0, 0, 0, 0, grid.left, grid.right))
    return joined.unfold(0, grid.stretch, grid.size).transpose(-1, -2)


@final
class _KeyWindows(torch.autograd.Function):
    """`unfolded_windows` with a faster backward: that of `unfold` takes a third of the whole step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, grid: Grid) -> Tensor:
        batch, groups, length, width = x.shape
        blocks = grid.count(length)
        ctx.grid, ctx.shape = grid, x.shape
        joined = x.new_zeros(grid.left + batch * blocks * grid.size + grid.right, groups, width)
        _without_padding(joined, grid, x.shape).copy_(x)
        step = groups * width
        return joined.as_strided((batch * blocks, groups, grid.stretch, width), (grid.size * step, width, step, 1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        grid, blocks = ctx.grid, grad.shape[0]
        pieces = grid.count(grid.stretch)
        summed = grad.new_zeros(blocks + pieces, grid.size, grad.shape[1], grad.shape[3])
        for piece in range(pieces):  # position p of block b is position p + size of the previous block
            part = grad[:, :, piece * grid.size : (piece + 1) * grid.size].transpose(1, 2)
            summed[piece : piece + blocks, : part.shape[1]] += part
        return _without_padding(summed.flatten(0, 1), grid, ctx.shape), None


def _without_padding(joined: Tensor, grid: Grid, shape: torch.Size) -> Tensor:
    """Return the tokens of a batch from the concatenation of `_KeyWindows`: (…, G, K) -> (B, G, T, K)."""
    batch, groups, length, width = shape
    inner = joined[grid.left : grid.left + batch * grid.count(length) * grid.size]
    return inner.view(batch, -1, groups, width)[:, :length].transpose(1, 2)
