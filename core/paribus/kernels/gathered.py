"""Kernel `gathered`: dilated windows, random blocks and global tokens, in time and memory O(n).

Queries are cut into blocks, and the keys of a block are gathered for all of its queries at once: near tokens, random
blocks, and global tokens. Tokens at a distance of the dilation are made adjacent before they are cut, so that a
dilated window becomes a plain one. Global tokens are few, and attend to the whole sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from paribus.kernels.sdpa import additive_mask, fused_attention, with_sinks
from paribus.parts.attend import DensePlan, dense_plan
from paribus.parts.batch import PADDING, TokenLayout
from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring, Pair
from paribus.parts.visibility import Visibility, visibility_mask


class BlockLayout(NamedTuple):
    """Layout of blocks: from `start`, tokens `stride` apart are adjacent, and `size` of these are a block."""

    size: int
    left: int  # number of adjacent tokens before the block that are within the window
    right: int
    stride: int
    start: int

    def count(self, length: int) -> int:
        """Return the number of blocks of each residue, at least one."""
        return max(1, -(-(length - self.start) // (self.stride * self.size)))

    def own(self, length: int, device: torch.device, *, left_context: int = 0, right_context: int = 0) -> Tensor:
        """(N, left + size + right): indices of each block and its neighbours, some outside the sequence."""
        blocks = torch.arange(self.count(length), device=device) * self.size
        indices = blocks.unsqueeze(-1) + torch.arange(-left_context, self.size + right_context, device=device)
        residues = torch.arange(self.stride, device=device).view(-1, 1, 1)
        return (self.start + indices * self.stride + residues).flatten(0, 1)

    def cut(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> (B * N, H, size, K)."""
        _, heads, length, width = x.shape
        positions = self.count(length) * self.size
        tokens = x.transpose(1, 2)[:, self.start :]
        padded = functional.pad(tokens, (0, 0, 0, 0, 0, positions * self.stride - tokens.shape[1]))
        strided = padded.view(-1, positions, self.stride, heads, width).transpose(1, 2)
        return strided.reshape(-1, self.size, heads, width).transpose(1, 2)

    def joined(self, x: Tensor, length: int) -> Tensor:
        """(B * N, H, size, K) -> (B, H, T - start, K); inverse of `cut`."""
        _, heads, _, width = x.shape
        strided = x.transpose(1, 2).reshape(-1, self.stride, self.count(length) * self.size, heads, width)
        return strided.transpose(1, 2).flatten(1, 2)[:, : max(0, length - self.start)].transpose(1, 2)


class GatheredBlocks(NamedTuple):
    """Indices of the keys (W) of each block of queries, and their masks."""

    layout: BlockLayout
    keys: Tensor  # (N, W): indices of tokens
    mask: Tensor  # (B * N, H|1, size, W), added to the scores: -inf where a key is not visible
    first: int  # number of global tokens, which attend to all
    early: Tensor | None  # (B|1, H|1, first, T): the mask of global tokens


@final
class Gathered:
    """`scaled_dot_product_attention` of blocks of queries over their gathered keys."""

    name = "gathered"

    def serves(self, request: KernelRequest) -> bool:
        visibility, length = request.visibility, request.queries
        if visibility.is_contiguous or (visibility.window is None and visibility.blocks is None):
            return False
        if not request.aligned or request.has_order or not request.window_by_index or request.bias == "content":
            return False
        if request.needs_weights or request.has_mix or request.soft_cap or request.has_score_functions:
            return False
        if visibility.blocks is not None and length > visibility.blocks.size * len(visibility.blocks.random_blocks):
            return False
        # For fewer queries, a mask is faster.
        return length == 0 or 2 * pair_count(visibility, length) <= length * length

    def prepare(
        self, plan: AttentionPlan, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor
    ) -> GatheredBlocks:
        visibility, length = plan.request.visibility, like.shape[1]
        layout = layout_of(visibility)
        index = gathered_indices(visibility, layout, length, like)
        q, k = _select(plan.q, layout.own(length, like.device)), _select(plan.k, index)
        # Every key of a random block is visible; a key within the window of one query may be outside that of another.
        visible = visibility_mask(
            visibility if visibility.blocks is None else Visibility(visibility.causal),
            q,
            k,
            window_by_index=plan.k.documents is None,
        )
        assert visible is not None, "keys outside the window are hidden, so there is a mask"
        is_first = _is_first_occurrence(index)[:, None, None]
        visible = visible & (
            is_first if visible.shape[0] == is_first.shape[0] else is_first.repeat(like.shape[0], 1, 1, 1)
        )
        offset = None
        if bias is not None:
            pair = Pair(None, None, q.positions, k.positions, plan.scale, heads, dtype=like.dtype)
            offset = bias(pair).to(like.dtype)
        mask = additive_mask(DensePlan(visible, offset), like.dtype)
        assert mask is not None, "hidden keys give a mask"
        if mask.shape[0] != index.shape[0] * like.shape[0]:
            mask = mask.repeat(like.shape[0], 1, 1, 1)
        global_count = 0 if visibility.causal else visibility.global_tokens
        return GatheredBlocks(
            layout, index.clamp(0, length - 1), mask, global_count, _global_mask(plan, global_count, bias, heads, like)
        )

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, content: LayerScoring | None, dropout: float
    ) -> Tensor:
        """(B, H, T, K), (B, G, T, K), (B, G, T, K) -> (B, H, T, K)."""
        blocks: GatheredBlocks = plan.kernel_data
        sinks = content.sinks if content is not None else None
        length = q.shape[2]
        keys, values, mask = gather(k, blocks.keys), gather(v, blocks.keys), blocks.mask
        if sinks is not None:
            keys, values, mask = with_sinks(keys, values, mask, sinks, blocks.layout.size)
        mixed = fused_attention(blocks.layout.cut(q), keys, values, mask, plan.scale, dropout)  # (B * N, H, size, K)
        mixed = blocks.layout.joined(mixed, length)
        if not blocks.first:
            return mixed
        global_queries, keys, values, global_mask = q[:, :, : blocks.first], k, v, blocks.early
        if sinks is not None:
            keys, values, global_mask = with_sinks(keys, values, global_mask, sinks, global_queries.shape[2])
        global_output = fused_attention(global_queries, keys, values, global_mask, plan.scale, dropout)
        return torch.cat([global_output, mixed[:, :, blocks.first - blocks.layout.start :]], dim=2)


def layout_of(visibility: Visibility) -> BlockLayout:
    """Return the layout of random blocks or of a window; whole blocks of global tokens are skipped."""
    if visibility.blocks is not None:
        size, reach = visibility.blocks.size, visibility.blocks.neighbors * visibility.blocks.size
    else:
        assert visibility.window is not None, "without random blocks, a window is required"
        reach = visibility.window - 1
        span = reach if visibility.causal else 2 * reach
        size = min(max(2 ** round(math.log2(max(span, 1) / 2)), 16), 128)
    start = 0 if visibility.causal or visibility.dilation > 1 else visibility.global_tokens // size * size
    return BlockLayout(size, reach, 0 if visibility.causal else reach, visibility.dilation, start)


def pair_count(visibility: Visibility, length: int) -> int:
    """Return the number of pairs of a query and a key that are computed."""
    layout = layout_of(visibility)
    random_keys = 0 if visibility.blocks is None else visibility.blocks.max_random_blocks * layout.size
    width = layout.left + layout.size + layout.right + random_keys + visibility.global_tokens
    global_pairs = 0 if visibility.causal else visibility.global_tokens * length
    return layout.count(length) * layout.stride * layout.size * width + global_pairs


def gathered_indices(visibility: Visibility, layout: BlockLayout, length: int, like: Tensor) -> Tensor:
    """Return the sorted indices of the keys of each block: (N, W); may be out of range, or appear twice."""
    device = like.device
    pieces = [layout.own(length, device, left_context=layout.left, right_context=layout.right)]
    count = pieces[0].shape[0]
    if visibility.blocks is not None:
        skipped = layout.start // layout.size
        blocks = visibility.blocks.random_block_table(like)[skipped : skipped + count]  # -1: no block, negative indices
        inside = torch.arange(layout.size, device=device)
        pieces.append((blocks.unsqueeze(-1) * layout.size + inside).flatten(1))
    if visibility.global_tokens:
        pieces.append(torch.arange(visibility.global_tokens, device=device).expand(count, -1))
    sorted_rows, _ = torch.cat(pieces, dim=1).sort(-1)
    return sorted_rows


def gather(x: Tensor, index: Tensor) -> Tensor:
    """Gather the positions of each block: (B, G, T, K), (N, W) -> (B * N, G, W, K)."""
    batch, groups, length, width = x.shape
    table = x.transpose(1, 2).reshape(batch * length, groups * width)
    start = torch.arange(batch, device=x.device).view(-1, 1, 1) * length
    gathered: Tensor = functional.embedding((start + index).flatten(0, 1), table)  # with a deterministic backward
    return gathered.view(*gathered.shape[:2], groups, width).transpose(1, 2)


def _is_first_occurrence(index: Tensor) -> Tensor:
    """Return False where an index repeats the previous one: (N, W) sorted -> (N, W) bool."""
    return functional.pad(index[:, 1:] != index[:, :-1], (1, 0), value=True)


def _select(layout: TokenLayout, index: Tensor) -> TokenLayout:
    """Select tokens at (N, M) indices: (B|1 * N, M). Tokens out of range are padding, whose positions continue."""
    nearest = index.clamp(0, layout.positions.shape[-1] - 1)
    positions = layout.positions[:, nearest] + (index - nearest)  # (B|1, N, M)
    documents = torch.zeros_like(positions) if layout.documents is None else layout.documents[:, nearest]
    documents = documents.where(index == nearest, PADDING)
    batch = max(positions.shape[0], documents.shape[0])
    vectors = positions, documents, index.unsqueeze(0)
    return TokenLayout(*(vector.expand(batch, -1, -1).flatten(0, 1) for vector in vectors))


def _global_mask(
    plan: AttentionPlan, count: int, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor
) -> Tensor | None:
    """Return the mask of the global tokens, which hides only padding and other documents."""
    if not count:
        return None
    q = TokenLayout(plan.q.positions[:, :count], None if plan.q.documents is None else plan.q.documents[:, :count])
    request = plan.request._replace(visibility=Visibility())
    return additive_mask(dense_plan(plan._replace(q=q, request=request), bias, heads, like), like.dtype)
