"""Kernel `sdpa`: torch's fused attention, with a mask only where one is needed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from paribus.parts.attend import DensePlan, all_pairs, dense_plan
from paribus.parts.batch import TokenLayout
from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring, Pair
from paribus.parts.heads import repeat_heads
from paribus.parts.visibility import Visibility

# cuDNN, which torch prefers on Hopper, plans each new number of keys anew: in decoding, at each step.
ONE_QUERY_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
PRODUCTS_FROM = 2**18  # elements of the keys; with fewer, the fused kernel has fewer calls


class MaskPlan(NamedTuple):
    """Mask of an attention: none, causal (which torch applies without a tensor), or the tensor `mask`."""

    causal: bool = False
    mask: Tensor | None = None  # (B|1, H|1, T, S), added to the scores: -inf where a key is not visible
    last: int | None = None  # number of last keys that are used; None: all
    visible: Tensor | None = None  # (B|1, 1, T, S) bool, for a bias that reads content


@final
class Sdpa:
    """`scaled_dot_product_attention`. A query without a visible key has an output and gradients of 0."""

    name = "sdpa"

    def serves(self, request: KernelRequest) -> bool:
        return not (request.needs_weights or request.has_mix or request.soft_cap or request.has_score_functions)

    def prepare(self, plan: AttentionPlan, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor) -> MaskPlan:
        request, visibility, keys = plan.request, plan.request.visibility, plan.k.positions.shape[-1]
        if (
            plan.k.documents is not None
            or request.has_order
            or request.bias == "content"
            or not visibility.is_contiguous
        ):
            dense = dense_plan(plan, bias, heads, like)
            return MaskPlan(mask=additive_mask(dense, like.dtype), visible=dense.seen)
        if visibility.causal and plan.q.positions.shape[-1] == 1:  # the last token sees a span of last keys
            last_keys = visibility.span(keys)
            plan = plan._replace(
                k=TokenLayout(plan.k.positions[:, -last_keys:]), request=request._replace(visibility=Visibility())
            )
            return MaskPlan(mask=additive_mask(dense_plan(plan, bias, heads, like), like.dtype), last=last_keys)
        sees_all_keys = visibility.window is None or (request.aligned and visibility.window >= keys)
        # is_causal aligns the first query with the first key: correct only where queries and keys are the same tokens
        if bias is None and sees_all_keys and not request.has_sinks and (request.aligned or not visibility.causal):
            return MaskPlan(causal=visibility.causal)
        return MaskPlan(mask=additive_mask(dense_plan(plan, bias, heads, like), like.dtype))

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, content: LayerScoring | None, dropout: float
    ) -> Tensor:
        """(B, H, T, K), (B, G, S, K), (B, G, S, K) -> (B, H, T, K)."""
        mask_plan: MaskPlan = plan.kernel_data
        mask = mask_plan.mask
        if mask_plan.last is not None:
            k, v = k[:, :, -mask_plan.last :], v[:, :, -mask_plan.last :]
        if content is not None and content.bias is not None:
            bias = content.bias(all_pairs(q, k, plan, content, mask_plan.visible))
            mask = bias if mask is None else bias + mask
        if content is not None and content.sinks is not None:
            k, v, mask = with_sinks(k, v, mask, content.sinks, q.shape[2])
        if q.shape[2] == 1:
            with sdpa_kernel(ONE_QUERY_BACKENDS) if q.is_cuda else nullcontext():
                attend = fused_attention if k.shape[1] == q.shape[1] else _one_query
                return attend(q, k, v, mask, plan.scale, dropout)
        return fused_attention(q, k, v, mask, plan.scale, dropout, causal=mask_plan.causal)


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, dropout: float, *, causal: bool = False
) -> Tensor:
    """(B, H, T, K), (B, G, S, K), (B, G, S, K) -> (B, H, T, K); shared heads are not copied on a CPU."""
    shares_heads = k.shape[1] != q.shape[1]
    if shares_heads and mask is not None and q.is_cuda:  # no fused CUDA kernel takes both a mask and shared heads
        k, v, shares_heads = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1]), False
    width, missing_columns = v.shape[-1], q.shape[-1] - v.shape[-1]
    # The fused CPU kernel of torch requires that queries and values have one width.
    if missing_columns > 0 and q.device.type == "cpu":
        v = functional.pad(v, (0, missing_columns))
    mixed = functional.scaled_dot_product_attention(
        q, k, v, mask, dropout, is_causal=causal, scale=scale, enable_gqa=shares_heads
    )
    return mixed if mixed.shape[-1] == width else mixed[..., :width]


def with_sinks(k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor, queries: int) -> tuple[Tensor, Tensor, Tensor]:
    """Append a key of zeros with value 0, whose score for every query is the sink of its head."""
    sink = sinks.to(k.dtype).view(1, -1, 1, 1).expand(1, -1, queries, 1)  # (H,) -> (1, H, T, 1)
    key_mask = k.new_zeros(1, 1, queries, k.shape[2]) if mask is None else mask
    size = (max(key_mask.shape[0], 1), sinks.shape[0], queries)
    mask = torch.cat([key_mask.expand(*size, -1), sink.expand(*size, 1)], dim=-1)
    k, v = (torch.cat([side, side.new_zeros(*side.shape[:2], 1, side.shape[3])], dim=2) for side in (k, v))
    return k, v, mask


def additive_mask(dense: DensePlan, dtype: torch.dtype) -> Tensor | None:
    """Return visibility and bias as one tensor that is added to the scores, converted once for all layers."""
    if dense.seen is None:
        return dense.bias
    if dense.bias is not None:
        return dense.bias.masked_fill(~dense.seen, -torch.inf)
    zero = torch.zeros((), dtype=dtype, device=dense.seen.device)
    return torch.where(dense.seen, zero, -torch.inf)


def _one_query(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, dropout: float) -> Tensor:
    """Attend from one query; query heads that share a key head are folded, to read the cache once."""
    groups = k.shape[1]
    group_size = q.shape[1] // groups
    if mask is None and not dropout and _suits_products(q, k, group_size):
        return _products(q, k, v, scale)
    if mask is not None:
        heads = group_size if mask.shape[1] > 1 else 1
        mask = mask.reshape(mask.shape[0], mask.shape[1] // heads, heads, mask.shape[-1]).expand(-1, -1, group_size, -1)
    folded = q.reshape(q.shape[0], groups, group_size, q.shape[-1])  # (B, H, 1, K) -> (B, G, H/G, K)
    mixed = functional.scaled_dot_product_attention(folded, k, v, mask, dropout, scale=scale)
    return mixed.reshape(*q.shape[:-1], v.shape[-1])


def _suits_products(q: Tensor, k: Tensor, group_size: int) -> bool:
    """Return whether `_products` is faster than the fused kernel: groups of four and a large cache, on a CPU."""
    return (
        group_size == 4
        and k.numel() >= PRODUCTS_FROM
        and k.device.type == "cpu"
        and k.dtype in (torch.float32, torch.float64)
        and k.stride(0) == k.shape[1] * k.stride(1)  # a cache; the keys of a memory would be copied
        and not q.requires_grad
    )


def _products(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attend from one query by products that read keys row by row; BLAS is slow with transposed keys from memory."""
    folded = (q * scale).reshape(-1, q.shape[1] // k.shape[1], q.shape[-1])  # (B, H, 1, K) -> (B*G, H/G, K)
    scores = torch.bmm(k.flatten(0, 1), folded.transpose(1, 2))  # (B*G, S, H/G): half the time of its transpose
    mixed = torch.bmm(scores.transpose(1, 2).softmax(-1), v.flatten(0, 1))
    return mixed.view(*q.shape[:-1], v.shape[-1])
