"""Uniform attention (`uniform`), a control."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import Attention, AttentionTraits, Context, Cost, Load, Shape, State
from paribus_attention.scan import empty_sums, scan_flops, weighted_average
from paribus_attention.values import Values


@final
class Uniform(Attention):
    """Uniform average of all visible values: a control with values but no queries or keys.

    It is multi-head attention with all scores 0, in O(T): a running mean in causal stacks, as in "Accelerating Neural
    Transformer via an Average Attention Network" (Zhang et al. 2018), and one mean in bidirectional stacks and over a
    memory. Decoding keeps a sum and a count.
    """

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
        "causal": True,
        "cross": True,
        "documents": True,
        "order": False,
        "residual": True,
        "raw_memory": True,
        "weights": False,
        "decodes": True,
        "content_based": False,
    }

    def __init__(self, shape: Shape, *, bias: Annotated[bool, "add a bias to the projections"] = True) -> None:
        super().__init__()
        self.heads = Values(shape, bias=bias)
        self.crosses = shape.memory_width is not None
        self.causal = shape.causal and not self.crosses

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        ones = x.new_ones(x.shape[0], 1, 1, x.shape[1], 1)  # the same average for all heads
        return self.heads.merge(weighted_average(ones, x, self._keys_and_values, ctx, causal=self.causal)[:, 0, 0])

    def _keys_and_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return constant features and the values: (B, S, D) -> (B, 1, 1, S, 1), (B, 1, 1, S, H*K)."""
        v = self.heads.values(source)[:, None, None]
        return torch.ones_like(v[..., :1]), v

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_sums((batch, 1, 1, self.heads.inner), like) if self.causal else {}

    def cost(self, load: Load) -> Cost:
        inner, keys = self.heads.inner, load.memory if self.crosses else load.queries
        scan = scan_flops(load.queries, 1, 1, 1, inner) if self.causal else 2 * (keys + load.queries) * inner
        return Cost(self.heads.cost(keys, load.queries) + scan, state=inner + 1)
