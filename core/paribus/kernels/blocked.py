"""Kernel `blocked`: windowed attention in time and memory O(n r), in plain torch.

Queries are cut into blocks, and each block attends to one contiguous stretch of keys within its reach. Stretches
overlap, so they are a view of the keys; a gather of the keys of each query would be linear too, but 90 times slower. A
document is a contiguous run of tokens with increasing positions, so tokens near by position are near by index.

In training on a CPU, `_WindowProducts` computes the same as torch's fused attention by batched matrix products.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
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
    hidden: Tensor | None = None  # (B * blocks, 1, size, 1): queries without a visible key; None: there are none


@final
class Blocked:
    """Attention of blocks of queries over their stretches of keys."""

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
        has_products, length = _has_fast_products(like), like.shape[1]
        grid = grid_of(plan.request.visibility, small=has_products)
        rows, index, offset = None, None, None
        if has_products and bias is None and plan.k.documents is None:
            rows, index = _distinct_blocks(grid, length)
        q, k = _blocks(plan.q, grid, rows)
        if bias is not None:
            pair = Pair(None, None, q.positions, k.positions, plan.scale, heads, dtype=like.dtype)
            offset = bias(pair).to(like.dtype)
        window_by_index = plan.k.documents is None  # as for the whole: within blocks, only padding has a document
        seen = visibility_mask(plan.request.visibility, q, k, window_by_index=window_by_index)
        assert seen is not None, "padding is hidden, so there is a mask"
        mask = additive_mask(DensePlan(seen, offset), like.dtype)
        assert mask is not None, "as above"
        has_padding = plan.k.documents is not None or length % grid.size > 0
        hidden = ~seen.any(-1, keepdim=True) if has_products and has_padding else None
        blocks = like.shape[0] * grid.count(length)
        return BlockedMask(
            grid, _repeat(mask, index, blocks), None if hidden is None else _repeat(hidden, index, blocks)
        )

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, content: LayerScoring | None, dropout: float
    ) -> Tensor:
        """(B, H, T, K), (B, G, T, K), (B, G, T, K) -> (B, H, T, K)."""
        grid, mask, _ = plan.kernel_data
        batch, heads, length, width = q.shape
        has_sinks = content is not None and content.sinks is not None
        has_gradients = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        if has_gradients and _has_fast_products(q) and not (has_sinks or dropout or mask.requires_grad):
            products: Tensor = _WindowProducts.apply(q, k, v, plan.kernel_data, plan.scale)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            return products
        blocks = grid.count(length)
        padded = functional.pad(q.transpose(1, 2), (0, 0, 0, 0, 0, blocks * grid.size - length))
        queries = padded.reshape(batch * blocks, grid.size, heads, width).transpose(1, 2)
        keys, values = key_windows(k, grid), key_windows(v, grid)
        if content is not None and content.sinks is not None:
            keys, values, mask = with_sinks(keys, values, mask, content.sinks, grid.size)
        mixed = fused_attention(queries, keys, values, mask, plan.scale, dropout)  # (B * blocks, H, size, K)
        return mixed.transpose(1, 2).reshape(batch, -1, heads, v.shape[-1])[:, :length].transpose(1, 2)


def grid_of(visibility: Visibility, *, small: bool = False) -> Grid:
    """Return a grid with blocks of half the window's span, between wasted pairs and many small products.

    `small`: of an eighth, for `_WindowProducts`, whose keys and gradients are not copied for each block.
    """
    assert visibility.window is not None, "this kernel requires a window"
    reach = visibility.window - 1
    span = reach if visibility.causal else 2 * reach
    size = 2 ** round(math.log2(max(span, 1) / (8 if small else 2)))
    side = -(-reach // _ALIGNED) * _ALIGNED
    return Grid(min(max(size, 32), 64 if small else 128), side, 0 if visibility.causal else side)


_ALIGNED = 16  # alignment of a mask, for vector units


def _blocks(layout: TokenLayout, grid: Grid, rows: Tensor | None = None) -> tuple[TokenLayout, TokenLayout]:
    """Return tokens as blocks of queries and stretches of keys: (B|1 * blocks, size) and (…, W); default all `rows`.

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
    if rows is not None:
        queries, keys = ([vector[rows] for vector in side] for side in (queries, keys))
    return TokenLayout(*queries), TokenLayout(*keys)


def _distinct_blocks(grid: Grid, length: int) -> tuple[Tensor, Tensor]:
    """Return the blocks that have different masks, and the index among them of each block.

    Without documents and biases, blocks differ only by the padding near the ends.
    """
    index = torch.arange(grid.count(length))
    first, last = -(-grid.left // grid.size), (length - grid.right) // grid.size  # the blocks between are equal
    equal = max(last - first, 1)
    return index[(index <= first) | (index >= last)], index.minimum((index - equal + 1).clamp(min=first))


def _repeat(x: Tensor, index: Tensor | None, blocks: int) -> Tensor:
    """Return `x` for each block of a batch."""
    x = x if index is None else x[index]
    return x if x.shape[0] == blocks else x.repeat(blocks // x.shape[0], 1, 1, 1)


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


# -- on a CPU ----------------------------------------------------------------------------------------------------------


def _has_fast_products(x: Tensor) -> bool:
    """Return whether `_WindowProducts` is used: without MKL, a batch of products is a loop of products."""
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64) or torch.compiler.is_compiling():
        return False
    return torch.backends.mkl.is_available() and not torch.is_autocast_enabled("cpu")


@final
class _WindowProducts(torch.autograd.Function):
    """Attention in windows by batched products.

    The backward pass computes the weights again, unless they take no more memory than queries, keys and values.
    The sequences of all batches and key heads are concatenated, and blocks are numbered across them. Blocks are
    computed in chunks whose weights fit into a cache, and gradients of keys are summed by the products themselves.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: BlockedMask, scale: float) -> Tensor:
        grid, groups = blocks.grid, k.shape[1]
        queries, keys, values = _split_queries(q, grid, groups), _joined(k, grid), _joined(v, grid)
        ctx.blocks, ctx.scale, ctx.shapes = blocks, scale, (q.shape, k.shape, v.shape)
        mixed = queries.new_empty(*queries.shape[:2], v.shape[-1])
        saves = grid.stretch <= 3 * q.shape[-1]
        saved: list[Tensor] = []
        for chunk in _chunks(blocks, groups, q.shape):
            weights = chunk.weights(queries, keys, scale)
            torch.bmm(weights, chunk.windows(values), out=chunk.of(mixed))
            if saves:
                saved.append(weights)
        ctx.save_for_backward(queries, keys, values, *saved)
        return _join_queries(mixed, grid, (*q.shape[:3], v.shape[-1]))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, *saved = ctx.saved_tensors
        grid, scale, (q_shape, k_shape, v_shape) = ctx.blocks.grid, ctx.scale, ctx.shapes
        grad = _split_queries(grads[0], grid, k_shape[1])
        q_grad = torch.empty_like(queries)
        k_grad, v_grad = torch.zeros_like(keys), torch.zeros_like(values)
        for index, chunk in enumerate(_chunks(ctx.blocks, k_shape[1], q_shape)):
            weights = saved[index] if saved else chunk.weights(queries, keys, scale)
            chunk.add_to_windows(v_grad, weights, chunk.of(grad))
            products = torch.bmm(chunk.of(grad), chunk.windows(values).transpose(1, 2))
            scores = torch.ops.aten._softmax_backward_data(products, weights, -1, weights.dtype)
            torch.baddbmm(chunk.of(q_grad), scores, chunk.windows(keys), beta=0, alpha=scale, out=chunk.of(q_grad))
            chunk.add_to_windows(k_grad, scores, chunk.of(queries), scale)
        return (
            _join_queries(q_grad, grid, q_shape),
            _tokens_of(k_grad, grid, k_shape),
            _tokens_of(v_grad, grid, v_shape),
            None,
            None,
        )


class _Chunk(NamedTuple):
    """Blocks from `start` to `stop`."""

    grid: Grid
    start: int
    stop: int
    mask: Tensor  # (B, G|1, blocks, H/G|1, size, W)
    hidden: Tensor | None  # (B, 1, blocks, 1, size, 1)

    def of(self, x: Tensor) -> Tensor:
        return x[self.start : self.stop]

    def windows(self, joined: Tensor) -> Tensor:
        """Return the stretches of keys of each block, (blocks, W, K)."""
        width, step = joined.shape[1], self.grid.size * joined.shape[1]
        return joined.as_strided(
            (self.stop - self.start, self.grid.stretch, width), (step, width, 1), self.start * step
        )

    def weights(self, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        """Return the weights of the keys, (blocks, H/G * size, W)."""
        q, (batch, _, blocks, _, size, stretch) = self.of(queries), self.mask.shape
        scores = q.new_empty(*q.shape[:2], stretch)
        by_head = (batch, -1, blocks, q.shape[1] // size, size, stretch)
        scores.view(by_head).copy_(self.mask)
        scores.baddbmm_(q, self.windows(keys).transpose(1, 2), alpha=scale)
        weights = scores.softmax(-1)
        if self.hidden is not None:
            weights.view(by_head).masked_fill_(self.hidden, 0)  # in place of NaN
        return weights

    def add_to_windows(self, joined: Tensor, weights: Tensor, x: Tensor, scale: float = 1) -> None:
        """Add `scale * weights^T x` to the stretches of each block, piece by piece, since these overlap."""
        width, size, stretch = joined.shape[1], self.grid.size, self.grid.stretch
        for first in range(0, stretch, size):
            shape = (self.stop - self.start, min(size, stretch - first), width)
            piece = joined.as_strided(shape, (size * width, width, 1), (self.start * size + first) * width)
            piece.baddbmm_(weights[:, :, first : first + size].transpose(1, 2), x, alpha=scale)


_CHUNK = 2**18  # weights of a chunk for each thread: 1 MiB of float32


def _chunks(blocks: BlockedMask, groups: int, shape: torch.Size) -> Iterator[_Chunk]:
    """Return chunks of whole batches, of whole heads, or of a part of the blocks of one head."""
    grid, mask, hidden = blocks
    batch, heads, length, _ = shape
    count, mask_groups = grid.count(length), 1 if mask.shape[1] == 1 else groups
    mask = mask.view(batch, count, mask_groups, -1, grid.size, grid.stretch).transpose(1, 2)
    hidden = None if hidden is None else hidden.view(batch, 1, count, 1, grid.size, 1)
    limit = max(1, _CHUNK * torch.get_num_threads() // (grid.size * grid.stretch * (heads // groups)))
    steps = (max(1, limit // (groups * count)), min(groups, max(1, limit // count)), min(count, limit))
    starts = (range(0, total, step) for total, step in zip((batch, groups, count), steps, strict=True))
    for b, g, n in itertools.product(*starts):
        box = tuple(slice(first, first + step) for first, step in zip((b, g, n), steps, strict=True))
        part = mask[box] if mask_groups > 1 else mask[box[0], :, box[2]]
        start = (b * groups + g) * count + n
        stop = start + part.shape[0] * min(steps[1], groups - g) * part.shape[2]
        yield _Chunk(grid, start, stop, part, None if hidden is None else hidden[box[0], :, box[2]])


def _split_queries(x: Tensor, grid: Grid, groups: int) -> Tensor:
    """(B, H, T, K) -> (B * G * blocks, H/G * size, K): query heads that share a key head are one block."""
    batch, heads, length, width = x.shape
    count = grid.count(length)
    padded = functional.pad(x, (0, 0, 0, count * grid.size - length)) if length % grid.size else x
    blocks = padded.reshape(batch, groups, heads // groups, count, grid.size, width).transpose(2, 3)
    return blocks.reshape(batch * groups * count, -1, width)


def _join_queries(x: Tensor, grid: Grid, shape: tuple[int, ...]) -> Tensor:
    """Inverse of `_split_queries`."""
    batch, heads, length, width = shape
    count = grid.count(length)
    blocks = x.view(batch, x.shape[0] // (batch * count), count, -1, grid.size, width).transpose(2, 3)
    return blocks.reshape(batch, heads, -1, width)[:, :, :length]


def _joined(x: Tensor, grid: Grid) -> Tensor:
    """(B, G, T, K) -> (left + B * G * blocks * size + right, K)."""
    batch, groups, length, width = x.shape
    joined = x.new_zeros(grid.left + batch * groups * grid.count(length) * grid.size + grid.right, width)
    _tokens_of(joined, grid, x.shape).copy_(x)
    return joined


def _tokens_of(joined: Tensor, grid: Grid, shape: torch.Size) -> Tensor:
    """Inverse of `_joined`, as a view."""
    batch, groups, length, width = shape
    inner = joined[grid.left : joined.shape[0] - grid.right]
    return inner.view(batch, groups, -1, width)[:, :, :length]
