"""Kernel `flex`: torch's FlexAttention, whose scores and mask are functions, fused on a CUDA device.

The conditions of the mask of `eager` decide visibility pair by pair, and blocks of pairs without a visible key are
skipped. A distance bias is one table of (H, T + S - 1); no tensor has T x S entries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring, Pair
from paribus.parts.visibility import PairCondition, pair_conditions

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Function of the indices of batch, head, query and key; true if the key is visible."""
Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Function of a score and the indices of batch, head, query and key; returns a score."""

BLOCK: Final = 128  # queries and keys of a block
MASK_ENTRIES: Final = 1 << 26  # pairs whose mask is in memory at a time
MIN_QUERIES: Final = BLOCK  # a mask of fewer queries is no larger than the blocks that flex would skip
MIN_WIDTH: Final = 16  # smallest head width of the fused products
COMPILED_KINDS: Final = 64  # kinds of masks and scores in a process; torch computes further ones unfused


class ScoreAndMask(NamedTuple):
    """Score function and block mask of an attention."""

    score: Score | None
    blocks: BlockMask | None
    has_table: bool = False  # whether the score reads a table of biases


@final
class Flex:
    """`flex_attention`, for requests for which `sdpa` would need a mask of T x S or cannot serve.

    The compiler accepts only a score function and a mask function: no content bias, no sinks, and no dropout.
    """

    name = "flex"

    def serves(self, request: KernelRequest) -> bool:
        if request.device != "cuda" or request.float64 or 0 < request.queries < MIN_QUERIES:
            return False
        if (
            request.needs_weights
            or request.has_mix
            or request.has_score_functions
            or request.has_sinks
            or request.has_dropout
        ):
            return False
        if request.bias == "content" or (request.bias == "positions" and not request.distance_bias):
            return False
        if request.visibility.causal and not request.aligned and not request.has_order:
            return False  # a few queries after a cache: their mask is small
        is_plain = (
            request.visibility.is_contiguous
            and request.visibility.window is None
            and not request.has_hidden_keys
            and not request.has_order
        )
        return request.soft_cap or request.bias != "none" or not is_plain

    def prepare(
        self, plan: AttentionPlan, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor
    ) -> ScoreAndMask:
        queries, keys = plan.q.positions.shape[-1], plan.k.positions.shape[-1]
        table = None if bias is None else distance_table(bias, queries, keys, plan.scale, heads, like)
        blocks = block_mask(plan, queries, keys, like)
        return ScoreAndMask(score_function(table, keys, plan.soft_cap), blocks, table is not None)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, content: LayerScoring | None, dropout: float
    ) -> Tensor:
        """(B, H, T, K), (B, G, S, K), (B, G, S, V) -> (B, H, T, V)."""
        assert not dropout, "this kernel does not support dropout"
        functions: ScoreAndMask = plan.kernel_data
        width = v.shape[-1]
        if q.is_cuda:
            q, k, v = (functional.pad(side, (0, max(0, MIN_WIDTH - side.shape[-1]))) for side in (q, k, v))
        shared = k.shape[1] != q.shape[1]
        options = table_options(q) if functions.has_table and q.is_cuda else None
        mixed: Tensor = _attention(q)(
            q, k, v, functions.score, functions.blocks, plan.scale, shared, kernel_options=options
        )
        return mixed if mixed.shape[-1] == width else mixed[..., :width]


def table_options(q: Tensor) -> dict[str, int]:
    """Return options of torch's kernel for a table of biases.

    The kernel loads blocks of keys and of the table in advance, and with torch's choices, for heads of 64 in half
    precision, they need more shared memory than an H100 or H200 has. These options are the fastest of those measured.
    """
    options = {"fwd_num_stages": 2}
    return {**options, "fwd_BLOCK_N": 64} if q.dtype.itemsize == 2 and q.shape[-1] <= 128 else options


def distance_table(
    bias: Callable[[Pair], Tensor], queries: int, keys: int, scale: float, heads: int, like: Tensor
) -> Tensor:
    """Return the bias for distances of 1 - S to T - 1: (H, T + S - 1)."""
    key_positions = torch.zeros(1, 1, dtype=torch.long, device=like.device)
    query_positions = -torch.arange(1 - keys, queries, device=like.device).unsqueeze(0)
    dtype = torch.promote_types(like.dtype, torch.float32)  # the dtype of scores
    return bias(Pair(None, None, key_positions, query_positions, scale, heads, dtype=dtype))[0, :, 0].to(dtype)


def score_function(table: Tensor | None, keys: int, soft_cap: float | None) -> Score | None:
    """Return the function that adds the bias to a scaled score and caps it."""
    if table is None and soft_cap is None:
        return None

    def score(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if table is not None:
            score = score + table[head, query - key + (keys - 1)]
        return score if soft_cap is None else soft_cap * torch.tanh(score / soft_cap)

    return score


def mask_function(conditions: list[PairCondition]) -> Mask:
    """Return the function that is true if all conditions hold between a query and a key."""

    def mask(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        results = [
            condition.holds(_entry(condition.queries, batch, query), _entry(condition.keys, batch, key))
            for condition in conditions
        ]
        return functools.reduce(torch.logical_and, results)

    return mask


def _entry(vector: Tensor, batch: Tensor, row: Tensor) -> Tensor:
    """Return the entry of (B|1, T) at a position."""
    return vector[0, row] if vector.shape[0] == 1 else vector[batch, row]


def block_mask(plan: AttentionPlan, queries: int, keys: int, like: Tensor) -> BlockMask | None:
    """Return the mask of blocks to compute; None if every key is visible to every query.

    The mask of pairs is made for some queries at a time, by plain operations: torch's `create_block_mask` needs memory
    for all pairs, or a compiler, which was not done with 16,384 tokens after a minute and a half.
    """
    window_by_index = plan.k.documents is None and not plan.request.has_order
    conditions = pair_conditions(plan.request.visibility, plan.q, plan.k, window_by_index=window_by_index)
    if not conditions:
        return None
    batch = max(side.shape[0] for condition in conditions for side in (condition.queries, condition.keys))
    rows = max(BLOCK, MASK_ENTRIES // (batch * keys) // BLOCK * BLOCK)
    any_visible, all_visible = [], []
    for start in range(0, queries, rows):
        holding = (it.holds(it.queries[:, start : start + rows, None], it.keys[:, None]) for it in conditions)
        mask = functools.reduce(torch.logical_and, holding).expand(batch, min(rows, queries - start), keys)
        mask = functional.pad(mask, (0, -keys % BLOCK, 0, -mask.shape[1] % BLOCK))
        blocks = mask.unflatten(2, (-1, BLOCK)).unflatten(1, (-1, BLOCK))
        any_visible.append(blocks.any(4).any(2))
        all_visible.append(blocks.all(4).all(2))
    full = torch.cat(all_visible, dim=1).unsqueeze(1)
    partial = torch.cat(any_visible, dim=1).unsqueeze(1) & ~full
    from torch.nn.attention.flex_attention import BlockMask

    return BlockMask.from_kv_blocks(
        *_listed(partial),
        *_listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_function(conditions),
        seq_lengths=(queries, keys),
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many blocks of keys each block of queries has, and their indices before those of the others."""
    order = torch.argsort(blocks.int(), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.int()


def _attention(like: Tensor) -> Callable[..., Any]:
    """Return `flex_attention`, compiled on CUDA, where torch would otherwise materialize all scores and the mask."""
    from torch.nn.attention.flex_attention import flex_attention

    function: Callable[..., Any] = flex_attention
    compiles = like.is_cuda and not torch.compiler.is_compiling()  # a compiled model already compiles it
    return _compiled(function) if compiles else function


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function once, at the first call; torch compiles it again for each kind of mask and score."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, COMPILED_KINDS)
    compiled: Callable[..., Any] = torch.compile(function)
    return compiled
