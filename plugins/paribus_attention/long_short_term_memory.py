"""Long short-term memory in place of attention (`lstm`)."""

from __future__ import annotations

from typing import Any, ClassVar, Final, final

import torch
from torch import Tensor

from paribus import Attention, AttentionTraits, AutocastOperation, Context, Cost, Load, Shape, State
from paribus_attention.recurrence import Hidden, directions, inner_width, run_recurrence


def _smallest_lstm() -> tuple[Any, ...]:
    """Return arguments of `torch.lstm`: one sequence of one token, one unit."""
    x, state, weight, bias = torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), torch.zeros(4, 1), torch.zeros(4)
    return x, (state, state), [weight, weight, bias, bias], True, 1, 0.0, True, False, True


LSTM: Final = AutocastOperation("LSTM", torch.lstm, _smallest_lstm)


@final
class LongShortTermMemory(Attention):
    """Long short-term memory in place of attention (Hochreiter & Schmidhuber 1997).

    It has the forget gate of "Learning to Forget" (Gers et al. 2000). In bidirectional stacks half of the width reads
    forwards and half backwards (Graves & Schmidhuber 2005). Decoding keeps h and c at any length.
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
        self.directions = directions(shape, gates=4)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return run_recurrence(self._run, x, self.directions, ("h", "c"), ctx)

    def _run(
        self, x: Tensor, batch_sizes: Tensor | None, initial: Hidden, weights: list[Tensor]
    ) -> tuple[Tensor, Hidden]:
        bidirectional = len(self.directions) == 2
        if batch_sizes is None:
            y, *final = LSTM(x, initial, weights, True, 1, 0.0, self.training, bidirectional, True)
        else:
            # Packed sequences are run without oneDNN, token by token.
            y, *final = torch.lstm(x, batch_sizes, initial, weights, True, 1, 0.0, self.training, bidirectional)
        return y, tuple(final)

    def float32_reason(self, device: torch.device, dtype: torch.dtype) -> str:
        return LSTM.float32_reason(device, dtype)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {name: like.new_zeros(batch, self.inner) for name in ("h", "c")}

    def cost(self, load: Load) -> Cost:
        gates = 4 * self.inner * len(self.directions)
        return Cost(2 * load.queries * gates * (self.width + self.inner), state=2 * self.inner)
