"""The attention `lstm`."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor

from paribus import Attention, Context, Cost, Load, Shape, State, Traits
from paribus_attention.recurrence import Hidden, directions, inner_width, recurred


@final
class LongShortTermMemory(Attention):
    """Rows are read one after the other, and what is kept of them is gated: "Long Short-Term Memory" (Hochreiter and
    Schmidhuber 1997), with the forget gate of "Learning to Forget" (Gers et al. 2000).

    Where rows see both sides, half of the width is read forwards and half backwards (Graves and Schmidhuber 2005). A
    decoding step keeps h and c, whatever the length.
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
        self.directions = directions(shape, gates=4)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return recurred(self._run, x, self.directions, ("h", "c"), ctx)

    def _run(self, x: Tensor, sizes: Tensor | None, before: Hidden, weights: list[Tensor]) -> tuple[Tensor, Hidden]:
        both = len(self.directions) == 2
        if sizes is None:
            y, *after = torch.lstm(x, before, weights, True, 1, 0.0, self.training, both, True)
        else:
            y, *after = torch.lstm(x, sizes, before, weights, True, 1, 0.0, self.training, both)
        return y, tuple(after)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {name: like.new_zeros(batch, self.inner) for name in ("h", "c")}

    def cost(self, load: Load) -> Cost:
        gates = 4 * self.inner * len(self.directions)
        return Cost(2 * load.queries * gates * (self.width + self.inner), state=2 * self.inner)
