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


def decayed_products(rows: Sequence[Tensor], k: Tensor, decay: Tensor | None, same: Tensor | None) -> list[Tensor]:
    """Return sum_c x_tc k_sc exp(g_tc - g_sc) for t >= s, else 0, for each x of `rows`: (…, R, K) -> (…, R, C).

    An x with R rows for C = R W keys (…, C, K) has one for the last of each W keys. `decay` g, (…, C, K) or (…, C, 1),
    does not increase from key to key; None: no decay. Pairs that `same` (…, C, C) excludes get 0.
    """
    every = [k.shape[-2] // x.shape[-2] for x in rows]
    if decay is not None and decay.shape[-1] > 1:
        spread = [
            functional.pad(x.unsqueeze(-2), (0, 0, n - 1, 0)).flatten(-3, -2) for x, n in zip(rows, every, strict=True)
        ]
        products = _products_by_halves(spread, k, decay)
        products = products if same is None else products * same
        return [x[..., n - 1 :: n, :] for x, n in zip(products.unbind(), every, strict=True)]
    visible = torch.ones(k.shape[-2:-1] * 2, dtype=torch.bool, device=k.device).tril()
    visible = visible if same is None else visible & same
    if decay is None:
        factors = visible.to(k.dtype)
    else:  # excluded before the exponential, which would overflow
        factors = (decay - decay.transpose(-1, -2)).masked_fill(~visible, -torch.inf).exp()
    return [x @ k.transpose(-1, -2) * factors[..., n - 1 :: n, :] for x, n in zip(rows, every, strict=True)]


def _products_by_halves(rows: Sequence[Tensor], k: Tensor, decay: Tensor) -> Tensor:
    size = k.shape[-2]
    shape = torch.broadcast_shapes(k.shape, decay.shape, *(x.shape for x in rows))
    rest = _power_of_two(size) - size
    stacked, k, decay = torch.stack([x.expand(shape) for x in rows]), k.expand(shape), decay.expand(shape)
    if rest:
        stacked, k = (functional.pad(x, (0, 0, 0, rest)) for x in (stacked, k))
        decay = torch.cat([decay, decay[..., -1:, :].expand(*shape[:-2], rest, -1)], dim=-2)
    products: Tensor = _ByHalves.apply(stacked, k, decay)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return products[..., :size, :size]


def _power_of_two(size: int) -> int:
    """Return the smallest power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()


def running_sum(x: Tensor) -> Tensor:
    """Return the sums of each token and those before it, by doubling: (…, C, E) -> (…, C, E).

    On CUDA, `cumsum` has no deterministic implementation, and a product may round to TF32.
    """
    size, length = 1, x.shape[-2]
    while size < length:
        x = x + functional.pad(x, (0, 0, size, 0))[..., :length, :]
        size *= 2
    return x


class _ByHalves(torch.autograd.Function):
    """Blocks of 1, 2, 4 … tokens from two halves each, with decays up to and from the end of the first half.

    Products and decays of halves are computed again for the gradient: stored, they would take most of the memory.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, k: Tensor, decay: Tensor) -> Tensor:
        blocks = (rows * k).sum(-1)[..., None, None]  # (R, …, C, 1, 1)
        size = 1
        while size < k.shape[-2]:
            second, first, *_ = _halves(rows, k, decay, size)
            blocks = _merged(blocks, second @ first.transpose(-1, -2))
            size *= 2
        ctx.save_for_backward(rows, k, decay)
        return blocks.squeeze(-3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, k, decay = ctx.saved_tensors
        diagonal = grad.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        rows_grad, k_grad, decay_grad = diagonal * k, (diagonal * rows).sum(0), torch.zeros_like(decay)
        size = 1
        while size < k.shape[-2]:
            second, first, second_factors, first_factors = _halves(rows, k, decay, size)
            lower = _below_diagonal(grad, size)
            second_grad = lower @ first
            first_grad = (lower.transpose(-1, -2) @ second).sum(0)
            halves = (-1, 2, size)
            rows_grad.unflatten(-2, halves)[..., 1, :, :].addcmul_(second_grad, second_factors)
            k_grad.unflatten(-2, halves)[..., 0, :, :].addcmul_(first_grad, first_factors)
            second_part, first_part = (second_grad * second).sum(0), first_grad * first
            in_halves = decay_grad.unflatten(-2, halves)
            in_halves[..., 1, :, :].add_(second_part)
            in_halves[..., 0, :, :].sub_(first_part)
            in_halves[..., 0, -1, :].add_(first_part.sum(-2) - second_part.sum(-2))
            size *= 2
        return rows_grad, k_grad, decay_grad


def _halves(rows: Tensor, k: Tensor, decay: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return rows of second halves and keys of first halves with their decays, and the decays: (…, N, S, K) each."""
    first, second = decay.unflatten(-2, (-1, 2, size)).unbind(-3)
    end = first[..., -1:, :]
    second_factors, first_factors = (second - end).exp(), (end - first).exp()
    row_halves, key_halves = (x.unflatten(-2, (-1, 2, size)) for x in (rows, k))
    return (
        row_halves[..., 1, :, :] * second_factors,
        key_halves[..., 0, :, :] * first_factors,
        second_factors,
        first_factors,
    )


def _below_diagonal(x: Tensor, size: int) -> Tensor:
    """Return the blocks of second halves by first halves on the diagonal: (…, C, C) -> (…, N, S, S)."""
    blocks = x.unflatten(-2, (-1, 2, size)).unflatten(-1, (-1, 2, size))[..., 1, :, :, 0, :]
    below: Tensor = blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
    return below


def _merged(blocks: Tensor, lower: Tensor) -> Tensor:
    """Join pairs of lower triangular blocks, with the block below their diagonal: (…, 2N, S, S) -> (…, N, 2S, 2S)."""
    size = blocks.shape[-1]
    first, second = blocks.unflatten(-3, (-1, 2)).unbind(-3)
    return torch.cat([functional.pad(first, (0, size)), torch.cat([lower, second], dim=-1)], dim=-2)


class _UnitLowerInverse(torch.autograd.Function):
    """Inverses of blocks of 1, 2, 4 … rows from those of two halves each, written into one matrix."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        inverse = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device).repeat(*lower.shape[:-2], 1, 1)
        size = 1
        while size < lower.shape[-1]:
            block = _below_diagonal(lower, size)
            if size > 1:
                first, second = (
                    inverse.unflatten(-2, (-1, size))
                    .unflatten(-1, (-1, size))
                    .diagonal(dim1=-4, dim2=-2)
                    .movedim(-1, -3)
                    .unflatten(-3, (-1, 2))
                    .unbind(-3)
                )
                block = second @ block @ first
            _below_diagonal(inverse, size).copy_(block.neg())
            size *= 2
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
    """Return (I + L)^-1 for the strictly lower triangle L of a matrix, whose other entries are ignored: (…, C, C).

    The inverses of two halves give that of the whole. Unlike powers of L, which cancel one another, this is as stable
    as substitution.
    """
    size = lower.shape[-1]
    rest = _power_of_two(size) - size
    padded = functional.pad(lower, (0, rest, 0, rest)) if rest else lower
    inverse: Tensor = _UnitLowerInverse.apply(padded)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return inverse[..., :size, :size] if rest else inverse


def product_flops(rows: int, keys: int, width: int, *, vector_decay: bool) -> int:
    """Count the operations of `decayed_products` of one side."""
    if not vector_decay:
        return 2 * rows * keys * width
    size = _power_of_two(keys)
    return size * (size - 1) * width


def inverse_flops(size: int) -> int:
    """Count the operations of `unit_lower_inverse`."""
    size = _power_of_two(size)
    return max(0, 2 * size * (size * size - 4) // 3)
