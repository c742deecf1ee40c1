"""The attention `gru`."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor

from paribus import Attention, Context, Cost, Load, Shape, State, Traits
from paribus_attention.recurrence import Hidden, directions, inner_width, recurred


@final
class GatedRecurrentUnit(Attention):
    """Rows are read one after the other into one gated state: "Learning Phrase Representations using RNN
    Encoder-Decoder" (Cho et al. 2014), the reset gate behind the product, as cuDNN and so torch have it.

    Where rows see both sides, half of the width is read forwards and half backwards. A decoding step keeps h.
    """

    traits: ClassVar[Traits] = {
        "consumes": [],
        "causal": True,
        "cross": False,
        "documents": True,
        "order": False,
        "residual": True,
        "weights": False,
        "decodes": True,
        "compiles": False,
    }

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.width, self.inner = shape.width, inner_width(shape)
        self.directions = directions(shape, gates=3)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return recurred(self._run, x, self.directions, ("h",), ctx)

    def _run(self, x: Tensor, sizes: Tensor | None, before: Hidden, weights: list[Tensor]) -> tuple[Tensor, Hidden]:
        both = len(self.directions) == 2
        if sizes is None:
            y, after = torch.gru(x, before[0], weights, True, 1, 0.0, self.training, both, True)
        else:
            y, after = torch.gru(x, sizes, before[0], weights, True, 1, 0.0, self.training, both)
        return y, (after,)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {"h": like.new_zeros(batch, self.inner)}

    def cost(self, load: Load) -> Cost:
        gates = 3 * self.inner * len(self.directions)
        return Cost(2 * load.queries * gates * (self.width + self.inner), state=self.inner)
