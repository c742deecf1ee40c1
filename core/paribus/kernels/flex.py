"""The kernel `flex`: torch's attention whose scores and mask are functions, fused on a CUDA device.

Who sees whom is asked pair by pair of the same relations that make the mask of `eager`, and whole blocks of pairs that
see nothing are left out. A bias of distances is looked up in one table of (H, T + S - 1); nothing is of T x S.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring, Pair
from paribus.parts.visibility import Relation, relations

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Batch, head, query and key, all numbers: whether the key is seen."""
Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""A score, and whose it is: another score."""

FEWEST: Final = 128  # rows of a block; of fewer, a mask is no larger than what is left out
NARROWEST: Final = 16  # columns that the fused products take


class Functions(NamedTuple):
    """What becomes of scores, which pairs are looked at, and what is known of it by whole blocks."""

    score: Score | None
    blocks: BlockMask | None


@final
class Flex:
    """`flex_attention`, where torch's plain attention could do with no less than a mask of T x S, if at all.

    Of sums over keys it is left what a compiler can make of two functions: no content, no sinks, and no dropout.
    """

    name = "flex"

    def serves(self, demand: KernelRequest) -> bool:
        if demand.device != "cuda" or demand.float64 or 0 < demand.queries < FEWEST:
            return False
        if (
            demand.needs_weights
            or demand.has_mix
            or demand.has_score_functions
            or demand.has_sinks
            or demand.has_dropout
        ):
            return False
        if demand.bias == "content" or (demand.bias == "positions" and not demand.distance_bias):
            return False
        if demand.visibility.causal and not demand.aligned and not demand.has_order:
            return False  # a few rows behind a cache: their mask is small
        plain = (
            demand.visibility.is_contiguous
            and demand.visibility.window is None
            and not demand.has_hidden_keys
            and not demand.has_order
        )
        return demand.soft_cap or demand.bias != "none" or not plain

    def prepare(
        self, plan: AttentionPlan, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor
    ) -> Functions:
        queries, keys = plan.q.positions.shape[-1], plan.k.positions.shape[-1]
        table = None if bias is None else distances(bias, queries, keys, plan.scale, heads, like)
        return Functions(scored(table, keys, plan.soft_cap), blocks_of(plan, queries, keys, like))

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, content: LayerScoring | None, dropout: float
    ) -> Tensor:
        """(B, H, T, K), (B, G, S, K), (B, G, S, V) -> (B, H, T, V)."""
        assert not dropout, "weights that are dropped are another kernel's"
        made: Functions = plan.kernel_data
        width = v.shape[-1]
        if q.is_cuda:
            q, k, v = (functional.pad(side, (0, max(0, NARROWEST - side.shape[-1]))) for side in (q, k, v))
        mixed: Tensor = _attention(q)(
            q, k, v, made.score, made.blocks, scale=plan.scale, enable_gqa=k.shape[1] != q.shape[1]
        )
        return mixed if mixed.shape[-1] == width else mixed[..., :width]


def distances(
    bias: Callable[[Pair], Tensor], queries: int, keys: int, scale: float, heads: int, like: Tensor
) -> Tensor:
    """(H, T + S - 1): what is added to the scores of rows that are 1 - S up to T - 1 apart."""
    here = torch.zeros(1, 1, dtype=torch.long, device=like.device)
    there = -torch.arange(1 - keys, queries, device=like.device).unsqueeze(0)
    dtype = torch.promote_types(like.dtype, torch.float32)  # that of scores
    return bias(Pair(None, None, here, there, scale, heads, dtype=dtype))[0, :, 0].to(dtype)


def scored(table: Tensor | None, keys: int, soft_cap: float | None) -> Score | None:
    """What is done to each score that is scaled already."""
    if table is None and soft_cap is None:
        return None

    def score(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if table is not None:
            score = score + table[head, query - key + (keys - 1)]
        return score if soft_cap is None else soft_cap * torch.tanh(score / soft_cap)

    return score


def seen(found: list[Relation]) -> Mask:
    """Whether all of the relations hold between a query and a key."""

    def mask(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        held = [each.holds(_at(each.queries, batch, query), _at(each.keys, batch, key)) for each in found]
        return functools.reduce(torch.logical_and, held)

    return mask


def _at(vector: Tensor, batch: Tensor, row: Tensor) -> Tensor:
    """Of (B|1, T), the entry of one row."""
    return vector[0, row] if vector.shape[0] == 1 else vector[batch, row]


def blocks_of(plan: AttentionPlan, queries: int, keys: int, like: Tensor) -> BlockMask | None:
    """Which blocks of pairs are to be looked at; None where all see all."""
    by_row = plan.k.documents is None and not plan.request.has_order
    found = relations(plan.request.visibility, plan.q, plan.k, by_row=by_row)
    if not found:
        return None
    batch = max(side.shape[0] for each in found for side in (each.queries, each.keys))
    made: BlockMask = _blocks(like)(seen(found), batch, None, queries, keys, device=str(like.device))
    return made


def _attention(like: Tensor) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return _fused(flex_attention, like)


def _blocks(like: Tensor) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import create_block_mask

    return _fused(create_block_mask, like)


def _fused(function: Callable[..., Any], like: Tensor) -> Callable[..., Any]:
    """Compiled where that is of use: else torch writes out all scores, and all of a mask to make blocks of it."""
    compiles = like.is_cuda and not torch.compiler.is_compiling()  # within a model that is compiled, it is already
    return _compiled(function) if compiles else function


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Once, and not before it is first called."""
    compiled: Callable[..., Any] = torch.compile(function)
    return compiled
