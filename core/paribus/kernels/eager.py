"""The kernel `eager`: attention as the papers write it. Slow, and the reference for all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from torch import Tensor
from torch.nn import functional

from paribus.parts.attention_weights import Dense, attention_weights, dense, pair_of
from paribus.parts.context import Content, Demand, Pair, Plan
from paribus.parts.heads import spread


@final
class Eager:
    """Every score and every weight, one after the other; the only kernel whose weights can be seen or mixed."""

    name = "eager"

    def serves(self, demand: Demand) -> bool:
        return True

    def prepare(self, plan: Plan, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor) -> Dense:
        return dense(plan, bias, heads, like)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, content: Content | None, dropout: float) -> Tensor:
        """(B, H, T, K), (B, G, S, K), (B, G, S, K) -> (B, H, T, K)."""
        weights = functional.dropout(attention_weights(q, k, plan, content), dropout)  # (B, H, T, S)
        mixed = weights @ spread(v, q.shape[1])
        if content is None or content.mix is None:
            return mixed
        extra = content.mix(weights, pair_of(q, k, plan, content))
        return mixed if extra is None else mixed + extra
