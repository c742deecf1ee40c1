"""The attention `fixed`."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import Attention, Context, Cost, Load, Shape, State, Traits
from paribus_attention.documents import awake, numbered
from paribus_attention.values import Values


@final
class Fixed(Attention):
    """Every row reads the last row and no other: the bottleneck of "Sequence to Sequence Learning" (Sutskever et al.
    2014), which attention removed.

    As cross-attention each row is given the memory's last state; over rows that see both sides, that of its document.
    Where rows see only the past, the last one that a row sees is itself: nothing would be mixed, so it is not causal.
    """

    traits: ClassVar[Traits] = {
        "consumes": [],
        "causal": False,
        "cross": True,
        "documents": True,
        "order": False,
        "residual": True,
        "raw": True,
        "weights": False,
        "decodes": True,
        "sees": "one",
        "asks": False,
    }

    def __init__(self, shape: Shape, *, bias: Annotated[bool, "whether the projections have a bias"] = True) -> None:
        super().__init__()
        self.heads = Values(shape, bias=bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        source = x if ctx.memory is None else ctx.memory
        if ctx.keys.documents is None:
            return self.heads.merge(self.heads.values(source[:, -1:])).expand(-1, x.shape[1], -1)
        last = _last(ctx.rows.documents, ctx.keys.documents).expand(x.shape[0], x.shape[1]).unsqueeze(-1)  # (B, T, 1)
        given = source.gather(1, last.clamp_min(0).expand(-1, -1, source.shape[-1]))
        values = self.heads.values(given)
        return self.heads.merge(values.masked_fill(last < 0, 0))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        """Of one row: all are given the same."""
        return Cost(self.heads.cost(1, 1))


def _last(asks: Tensor | None, given: Tensor) -> Tensor:
    """(B|1, T), (B|1, S) -> (B|1, T): which row is the last of each query's document, and -1 where there is none."""
    mine, theirs = numbered(asks, given)
    rows = torch.arange(theirs.shape[-1], device=given.device).expand_as(theirs)
    rows = torch.where(awake(given), rows, -1)
    last = torch.full((rows.shape[0], mine.shape[-1] + rows.shape[-1]), -1, device=given.device)
    return last.scatter_reduce(1, theirs, rows, "amax").gather(1, mine)
