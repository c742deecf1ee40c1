"""The kernel `gathered`: windows with gaps, blocks that were drawn and rows that all see, in time and memory O(n).

Queries are cut into blocks, and the keys that a block sees are gathered for all of its queries at once: what is near,
what was drawn for it, and the first rows. Rows that are a dilation apart are laid side by side before they are cut, so
that a window with gaps is one without. First rows that see all are few, and attend in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from paribus.kernels.sdpa import additive_mask, fused_attention, with_sinks
from paribus.parts.attention_weights import DensePlan, dense_plan
from paribus.parts.batch import PADDING, TokenLayout
from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring, Pair
from paribus.parts.visibility import Visibility, visibility_mask


class BlockLayout(NamedTuple):
    """How rows are cut: from `start` on those `stride` apart are laid together, and `size` of these are a block."""

    size: int
    left: int  # how many of the rows laid before and behind a block are near
    right: int
    stride: int
    start: int

    def count(self, rows: int) -> int:
        """How many blocks of each residue: one at least."""
        return max(1, -(-(rows - self.start) // (self.stride * self.size)))

    def own(self, rows: int, device: torch.device, *, left: int = 0, right: int = 0) -> Tensor:
        """(N, left + size + right): the rows of each block, with those laid around it. Some there may not be."""
        blocks = torch.arange(self.count(rows), device=device) * self.size
        indices = blocks.unsqueeze(-1) + torch.arange(-left, self.size + right, device=device)
        residues = torch.arange(self.stride, device=device).view(-1, 1, 1)
        return (self.start + indices * self.stride + residues).flatten(0, 1)

    def cut(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> (B * N, H, size, K)."""
        _, heads, rows, width = x.shape
        positions = self.count(rows) * self.size
        tokens = x.transpose(1, 2)[:, self.start :]
        padded = functional.pad(tokens, (0, 0, 0, 0, 0, positions * self.stride - tokens.shape[1]))
        strided = padded.view(-1, positions, self.stride, heads, width).transpose(1, 2)
        return strided.reshape(-1, self.size, heads, width).transpose(1, 2)

    def joined(self, x: Tensor, rows: int) -> Tensor:
        """(B * N, H, size, K) -> (B, H, T - start, K): undoes `cut`."""
        _, heads, _, width = x.shape
        strided = x.transpose(1, 2).reshape(-1, self.stride, self.count(rows) * self.size, heads, width)
        return strided.transpose(1, 2).flatten(1, 2)[:, : max(0, rows - self.start)].transpose(1, 2)


class GatheredBlocks(NamedTuple):
    """Which keys (W) each block of queries meets, and what it sees of them."""

    layout: BlockLayout
    keys: Tensor  # (N, W): rows
    mask: Tensor  # (B * N, H|1, size, W), added to the scores: -inf where a key is not seen
    first: int  # so many first rows see all
    early: Tensor | None  # (B|1, H|1, first, T): the mask of these


@final
class Gathered:
    """`scaled_dot_product_attention` on blocks of queries, each against the keys that were gathered for it."""

    name = "gathered"

    def serves(self, request: KernelRequest) -> bool:
        visibility, rows = request.visibility, request.queries
        if visibility.is_contiguous or (visibility.window is None and visibility.blocks is None):
            return False
        if not request.aligned or request.has_order or not request.window_by_index or request.bias == "content":
            return False
        if request.needs_weights or request.has_mix or request.soft_cap or request.has_score_functions:
            return False
        if visibility.blocks is not None and rows > visibility.blocks.size * len(visibility.blocks.random_blocks):
            return False
        return rows == 0 or 2 * pair_count(visibility, rows) <= rows * rows  # of fewer, a mask is faster

    def prepare(
        self, plan: AttentionPlan, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor
    ) -> GatheredBlocks:
        visibility, rows = plan.request.visibility, like.shape[1]
        layout = layout_of(visibility)
        index = gathered_indices(visibility, layout, rows, like.device)
        q, k = _select(plan.q, layout.own(rows, like.device)), _select(plan.k, index)
        # what is met of blocks is seen; what is near a row of its block need not be near another
        mask_seen = visibility_mask(
            visibility if visibility.blocks is None else Visibility(visibility.causal),
            q,
            k,
            window_by_index=plan.k.documents is None,
        )
        assert mask_seen is not None, "what lies outside is hidden, so there is something to hide"
        is_first = _is_first_occurrence(index)[:, None, None]
        mask_seen = mask_seen & (
            is_first if mask_seen.shape[0] == is_first.shape[0] else is_first.repeat(like.shape[0], 1, 1, 1)
        )
        offset = None
        if bias is not None:
            pair = Pair(None, None, q.positions, k.positions, plan.scale, heads, dtype=like.dtype)
            offset = bias(pair).to(like.dtype)
        mask = additive_mask(DensePlan(mask_seen, offset), like.dtype)
        assert mask is not None, "what is hidden makes a mask"
        if mask.shape[0] != index.shape[0] * like.shape[0]:
            mask = mask.repeat(like.shape[0], 1, 1, 1)
        first = 0 if visibility.causal else visibility.global_tokens
        return GatheredBlocks(
            layout, index.clamp(0, rows - 1), mask, first, _global_mask(plan, first, bias, heads, like)
        )

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, content: LayerScoring | None, dropout: float
    ) -> Tensor:
        """(B, H, T, K), (B, G, T, K), (B, G, T, K) -> (B, H, T, K)."""
        blocks: GatheredBlocks = plan.kernel_data
        sinks = content.sinks if content is not None else None
        rows = q.shape[2]
        keys, values, mask = gather(k, blocks.keys), gather(v, blocks.keys), blocks.mask
        if sinks is not None:
            keys, values, mask = with_sinks(keys, values, mask, sinks, blocks.layout.size)
        mixed = fused_attention(blocks.layout.cut(q), keys, values, mask, plan.scale, dropout)  # (B * N, H, size, K)
        mixed = blocks.layout.joined(mixed, rows)
        if not blocks.first:
            return mixed
        global_queries, keys, values, global_mask = q[:, :, : blocks.first], k, v, blocks.early
        if sinks is not None:
            keys, values, global_mask = with_sinks(keys, values, global_mask, sinks, global_queries.shape[2])
        global_output = fused_attention(global_queries, keys, values, global_mask, plan.scale, dropout)
        return torch.cat([global_output, mixed[:, :, blocks.first - blocks.layout.start :]], dim=2)


def layout_of(visibility: Visibility) -> BlockLayout:
    """Blocks as they were drawn, or of half a window's span; rows that see all are left out where whole blocks are."""
    if visibility.blocks is not None:
        size, reach = visibility.blocks.size, visibility.blocks.neighbors * visibility.blocks.size
    else:
        assert visibility.window is not None, "without blocks, a window says what is near"
        reach = visibility.window - 1
        span = reach if visibility.causal else 2 * reach
        size = min(max(2 ** round(math.log2(max(span, 1) / 2)), 16), 128)
    start = 0 if visibility.causal or visibility.dilation > 1 else visibility.global_tokens // size * size
    return BlockLayout(size, reach, 0 if visibility.causal else reach, visibility.dilation, start)


def pair_count(visibility: Visibility, rows: int) -> int:
    """How many pairs of a query and a key are computed."""
    layout = layout_of(visibility)
    random_keys = 0 if visibility.blocks is None else visibility.blocks.max_random_blocks * layout.size
    width = layout.left + layout.size + layout.right + random_keys + visibility.global_tokens
    global_pairs = 0 if visibility.causal else visibility.global_tokens * rows
    return layout.count(rows) * layout.stride * layout.size * width + global_pairs


def gathered_indices(visibility: Visibility, layout: BlockLayout, rows: int, device: torch.device) -> Tensor:
    """(N, W): the rows that each block meets, in their order; some there are not, and some stand there twice."""
    pieces = [layout.own(rows, device, left=layout.left, right=layout.right)]
    count = pieces[0].shape[0]
    if visibility.blocks is not None:
        skipped = layout.start // layout.size
        blocks = visibility.blocks.random_block_table(device)[
            skipped : skipped + count
        ]  # -1: none, and its rows are none either
        inside = torch.arange(layout.size, device=device)
        pieces.append((blocks.unsqueeze(-1) * layout.size + inside).flatten(1))
    if visibility.global_tokens:
        pieces.append(torch.arange(visibility.global_tokens, device=device).expand(count, -1))
    sorted_rows, _ = torch.cat(pieces, dim=1).sort(-1)
    return sorted_rows


def gather(x: Tensor, rows: Tensor) -> Tensor:
    """(B, G, T, K), (N, W) -> (B * N, G, W, K)."""
    batch, groups, length, width = x.shape
    table = x.transpose(1, 2).reshape(batch * length, groups * width)
    start = torch.arange(batch, device=x.device).view(-1, 1, 1) * length
    rows_of_blocks: Tensor = functional.embedding(
        (start + rows).flatten(0, 1), table
    )  # its backward adds in the same order each time
    return rows_of_blocks.view(*rows_of_blocks.shape[:2], groups, width).transpose(1, 2)


def _is_first_occurrence(index: Tensor) -> Tensor:
    """(N, W) sorted -> (N, W) bool: False where a row stands there for the second time."""
    return functional.pad(index[:, 1:] != index[:, :-1], (1, 0), value=True)


def _select(rows: TokenLayout, index: Tensor) -> TokenLayout:
    """Rows at (N, M) places, (B|1 * N, M); where there is no row is padding, whose positions run on."""
    nearest = index.clamp(0, rows.positions.shape[-1] - 1)
    positions = rows.positions[:, nearest] + (index - nearest)  # (B|1, N, M)
    documents = torch.zeros_like(positions) if rows.documents is None else rows.documents[:, nearest]
    documents = documents.where(index == nearest, PADDING)
    batch = max(positions.shape[0], documents.shape[0])
    vectors = positions, documents, index.unsqueeze(0)
    return TokenLayout(*(vector.expand(batch, -1, -1).flatten(0, 1) for vector in vectors))


def _global_mask(
    plan: AttentionPlan, first: int, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor
) -> Tensor | None:
    """What the first rows see, which is all but padding and other documents."""
    if not first:
        return None
    q = TokenLayout(plan.q.positions[:, :first], None if plan.q.documents is None else plan.q.documents[:, :first])
    demand = plan.request._replace(visibility=Visibility())
    return additive_mask(dense_plan(plan._replace(q=q, request=demand), bias, heads, like), like.dtype)
