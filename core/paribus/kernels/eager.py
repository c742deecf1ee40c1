"""Kernel `eager`: attention as the papers write it. Slow, and the reference for all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from torch import Tensor
from torch.nn import functional

from paribus.parts.attend import DensePlan, all_pairs, attention_weights, dense_plan
from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring, Pair
from paribus.parts.heads import repeat_heads


@final
class Eager:
    """Unfused attention; the only kernel that returns weights, and that supports a change of weights."""

    name = "eager"

    def serves(self, request: KernelRequest) -> bool:
        return True

    def prepare(
        self, plan: AttentionPlan, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor
    ) -> DensePlan:
        return dense_plan(plan, bias, heads, like)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, content: LayerScoring | None, dropout: float
    ) -> Tensor:
        """(B, H, T, K), (B, G, S, K), (B, G, S, K) -> (B, H, T, K)."""
        weights = functional.dropout(attention_weights(q, k, plan, content), dropout)  # (B, H, T, S)
        mixed = weights @ repeat_heads(v, q.shape[1])
        if content is None or content.mix is None:
            return mixed
        extra = content.mix(weights, all_pairs(q, k, plan, content, plan.kernel_data.seen))
        return mixed if extra is None else mixed + extra
