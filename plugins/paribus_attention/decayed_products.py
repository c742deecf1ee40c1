"""Products of queries and keys with decays between them, and inverses of triangular matrices, for `state_recurrence`.

A decay from one token to a later one is the exponential of a difference of sums of logarithms. Only differences of at
most 0 are exponentiated, so that nothing overflows, however strong the decay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


def decayed_products(rows: Sequence[Tensor], k: Tensor, decay: Tensor, same: Tensor | None) -> list[Tensor]:
    """Return sum_c x_tc k_sc exp(g_tc - g_sc) for t >= s, else 0, for each x of `rows`: (…, C, K) -> (…, C, C).

    `decay` g, (…, C, K) or (…, C, 1), does not increase from token to token. C is a power of two. Pairs of tokens that
    `same` (…, C, C) excludes get 0.
    """
    if decay.shape[-1] > 1:
        products = _by_halves(rows, k, decay)
        return products if same is None else [product * same for product in products]
    is_past = torch.ones(k.shape[-2:-1] * 2, dtype=torch.bool, device=k.device).tril()
    visible = is_past if same is None else is_past & same
    # Excluded before the exponential, which would overflow.
    factors = (decay - decay.transpose(-1, -2)).masked_fill(~visible, -torch.inf).exp()
    return [x @ k.transpose(-1, -2) * factors for x in rows]


def _by_halves(rows: Sequence[Tensor], k: Tensor, decay: Tensor) -> list[Tensor]:
    """Compute blocks of 1, 2, 4 … tokens from two halves each, with decays up to and from the end of the first half."""
    size = 1
    blocks = torch.stack([(x * k).sum(-1)[..., None, None] for x in rows])  # (R, …, C, 1, 1)
    while size < k.shape[-2]:
        halves = (k.shape[-2] // (2 * size), 2, size)
        first, second = decay.unflatten(-2, halves).unbind(-3)
        end = first[..., -1:, :]
        keys = (k.unflatten(-2, halves)[..., 0, :, :] * (end - first).exp()).transpose(-1, -2)
        factors = (second - end).exp()
        lower = torch.cat([x.unflatten(-2, halves)[..., 1, :, :] * factors for x in rows], dim=-2) @ keys
        blocks = _merged(blocks, torch.stack(lower.split(size, dim=-2)))
        size *= 2
    return list(blocks.squeeze(-3).unbind())


def _merged(blocks: Tensor, lower: Tensor) -> Tensor:
    """Join pairs of lower triangular blocks, with the block below their diagonal: (…, 2N, S, S) -> (…, N, 2S, 2S)."""
    size = blocks.shape[-1]
    first, second = blocks.unflatten(-3, (-1, 2)).unbind(-3)
    return torch.cat([functional.pad(first, (0, size)), torch.cat([lower, second], dim=-1)], dim=-2)


class _UnitLowerInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        inverse = lower.new_ones(*lower.shape[:-1], 1, 1)  # of blocks of 1, 2, 4 … tokens
        size = 1
        while size < lower.shape[-1]:
            blocks = lower.unflatten(-2, (-1, 2, size)).unflatten(-1, (-1, 2, size))[..., 1, :, :, 0, :]
            below = blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)  # (…, N, S, S)
            first, second = inverse.unflatten(-3, (-1, 2)).unbind(-3)
            inverse = _merged(inverse, -(second @ below @ first))
            size *= 2
        inverse = inverse.squeeze(-3)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        lower_grad: Tensor = -(transposed @ grad @ transposed).tril(-1)
        return lower_grad


def unit_lower_inverse(lower: Tensor) -> Tensor:
    """Return (I + L)^-1 for strictly lower triangular L: (…, C, C) -> (…, C, C).

    The inverses of two halves give that of the whole. Unlike powers of L, which cancel one another, this is as stable
    as substitution.
    """
    inverse: Tensor = _UnitLowerInverse.apply(lower)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return inverse


def product_flops(size: int, width: int, *, vector_decay: bool, sides: int) -> int:
    """Count the operations of `decayed_products` of `sides` rows."""
    return sides * size * width * (size - 1 if vector_decay else 2 * size)
