"""The attention `uniform`."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import Attention, Context, Cost, Load, Shape, State, Traits
from paribus_attention.scan import averaged, empty_sums, scan_flops
from paribus_attention.values import Values


@final
class Uniform(Attention):
    """The average of all rows that a row may see, whatever they hold: a control with values but no queries and no keys.

    It is multi-head attention whose every score is 0, in O(T): a running mean where rows see the past, as in
    "Accelerating Neural Transformer via an Average Attention Network" (Zhang et al. 2018), and one mean where they see
    both sides or a memory. A decoding step keeps a sum and a count.
    """

    traits: ClassVar[Traits] = {
        "consumes": [],
        "causal": True,
        "cross": True,
        "documents": True,
        "order": False,
        "residual": True,
        "raw": True,
        "weights": False,
        "decodes": True,
        "asks": False,
    }

    def __init__(self, shape: Shape, *, bias: Annotated[bool, "whether the projections have a bias"] = True) -> None:
        super().__init__()
        self.heads = Values(shape, bias=bias)
        self.crosses = shape.memory_width is not None
        self.causal = shape.causal and not self.crosses

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        ones = x.new_ones(x.shape[0], 1, 1, x.shape[1], 1)  # all heads average alike
        return self.heads.merge(averaged(ones, x, self._weighed, ctx, causal=self.causal)[:, 0, 0])

    def _weighed(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) -> (B, 1, 1, S, 1), (B, 1, 1, S, H*K): each row as much as any other."""
        v = self.heads.values(source)[:, None, None]
        return torch.ones_like(v[..., :1]), v

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_sums((batch, 1, 1, self.heads.inner), like) if self.causal else {}

    def cost(self, load: Load) -> Cost:
        inner, seen = self.heads.inner, load.memory if self.crosses else load.queries
        scan = scan_flops(load.queries, 1, 1, 1, inner) if self.causal else 2 * (seen + load.queries) * inner
        return Cost(self.heads.cost(seen, load.queries) + scan, state=inner + 1)
