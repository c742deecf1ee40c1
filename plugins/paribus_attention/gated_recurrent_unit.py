"""Gated recurrent unit in place of attention (`gru`)."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor

from paribus import Attention, AttentionTraits, Context, Cost, Load, Shape, State
from paribus_attention.recurrence import Hidden, directions, inner_width, run_recurrence


@final
class GatedRecurrentUnit(Attention):
    """Gated recurrent unit in place of attention (Cho et al. 2014).

    "Learning Phrase Representations using RNN Encoder-Decoder". The reset gate is applied after the product, as in
    cuDNN and torch. In bidirectional stacks half of the width reads forwards and half backwards. Decoding keeps h.
    """

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
        "causal": True,
        "cross": False,
        "documents": True,
        "order": False,
        "residual": True,
        "weights": False,
        "decodes": True,
        "compiles": False,
        "waits": True,  # for the lengths of documents
    }

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.width, self.inner = shape.width, inner_width(shape)
        self.directions = directions(shape, gates=3)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return run_recurrence(self._run, x, self.directions, ("h",), ctx)

    def _run(
        self, x: Tensor, batch_sizes: Tensor | None, initial: Hidden, weights: list[Tensor]
    ) -> tuple[Tensor, Hidden]:
        bidirectional = len(self.directions) == 2
        if batch_sizes is None:
            y, final = torch.gru(x, initial[0], weights, True, 1, 0.0, self.training, bidirectional, True)
        else:
            y, final = torch.gru(x, batch_sizes, initial[0], weights, True, 1, 0.0, self.training, bidirectional)
        return y, (final,)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {"h": like.new_zeros(batch, self.inner)}

    def cost(self, load: Load) -> Cost:
        gates = 3 * self.inner * len(self.directions)
        return Cost(2 * load.queries * gates * (self.width + self.inner), state=self.inner)
