"""Recurrent cells: one step of one layer, in one direction or in both at once.

N is the number of directions, G the width of all gates of a cell together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from paribus import AutocastOperation

CellKind = Literal["gru", "gru-after", "lstm"]
Hidden = tuple[Tensor, ...]
"""h, or h and c: (N, B, K) each."""


class RecurrentWeights(NamedTuple):
    """Recurrent weights and biases of all directions."""

    matrix: Tensor  # (N, K, G)
    bias: Tensor | None  # (N, 1, G)


Step = Callable[[Tensor, Hidden, RecurrentWeights], Hidden]
"""Compute the next state from a token's gates (N, B, G) and the previous state."""


def gru_step(gates: Tensor, state: Hidden, weights: RecurrentWeights) -> Hidden:
    """Step of Bahdanau et al. 2015, after Cho et al. 2014: the reset gate is applied before the product.

    z = s(W_z x + U_z h), r = s(W_r x + U_r h), n = tanh(W x + U (r h)), and (1 - z) h + z n; gates are z, r, n.
    """
    (h,) = state
    split = 2 * h.shape[-1]
    z, r = torch.baddbmm(gates[..., :split], h, weights.matrix[..., :split]).sigmoid().chunk(2, dim=-1)
    new = torch.baddbmm(gates[..., split:], r * h, weights.matrix[..., split:]).tanh()
    return (torch.lerp(h, new.to(h.dtype), z.to(h.dtype)),)  # products have a lower precision under autocast


def gru_after_step(gates: Tensor, state: Hidden, weights: RecurrentWeights) -> Hidden:
    """Step of cuDNN and torch: the reset gate is applied after the product and its bias.

    r = s(W_r x + U_r h), z likewise, n = tanh(W x + r (U h + b)), and (1 - z) n + z h; gates are r, z, n.
    """
    (h,) = state
    assert weights.bias is not None, "gru-after has a recurrent bias"
    r_of_x, z_of_x, n_of_x = gates.chunk(3, dim=-1)
    r_of_h, z_of_h, n_of_h = torch.baddbmm(weights.bias, h, weights.matrix).chunk(3, dim=-1)
    new = (n_of_x + (r_of_x + r_of_h).sigmoid() * n_of_h).tanh()
    z = (z_of_x + z_of_h).sigmoid()
    return (torch.lerp(new.to(h.dtype), h, z.to(h.dtype)),)


def lstm_step(gates: Tensor, state: Hidden, weights: RecurrentWeights) -> Hidden:
    """Step of long short-term memory with a forget gate; gates are input, forget, cell, output, as in torch."""
    h, c = state
    i, f, g, o = torch.baddbmm(gates, h, weights.matrix).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


class CellType(NamedTuple):
    """Step function and sizes of a kind of cell."""

    step: Step
    gates: int
    parts: int  # tensors of its state
    biased: bool  # with a recurrent bias, which is redundant for other kinds


CELLS: Final[Mapping[CellKind, CellType]] = {
    "gru": CellType(gru_step, 3, 1, biased=False),
    "gru-after": CellType(gru_after_step, 3, 1, biased=True),
    "lstm": CellType(lstm_step, 4, 2, biased=False),
}


@final
class Cell(nn.Module):
    """Weights of one direction of one layer: input, fed and recurrent projections of the gates."""

    def __init__(self, kind: CellKind, input_width: int, width: int, *, fed_width: int = 0) -> None:
        super().__init__()
        gates = CELLS[kind].gates * width
        self.sizes = input_width + fed_width + width, gates
        self.reads = nn.Linear(input_width, gates)
        self.fed = nn.Linear(fed_width, gates, bias=False) if fed_width else None
        self.repeats = nn.Linear(width, gates, bias=CELLS[kind].biased)

    def torch_weights(self) -> list[Tensor]:
        """Return weights and biases in torch's order, with a recurrent bias of 0 where the cell has none."""
        state_bias: Tensor | None = self.repeats.bias
        bias = torch.zeros_like(self.reads.bias) if state_bias is None else state_bias
        return [self.reads.weight, self.repeats.weight, self.reads.bias, bias]

    def flops(self, tokens: int) -> int:
        input_width, gates = self.sizes
        return 2 * tokens * input_width * gates


def stack_weights(directions: Sequence[Cell]) -> RecurrentWeights:
    """Stack the recurrent weights of one layer's directions, so that one product steps them all."""
    matrix = torch.stack([cell.repeats.weight.T for cell in directions])
    biases: list[Tensor] = [cell.repeats.bias for cell in directions if cell.repeats.bias is not None]
    return RecurrentWeights(matrix, torch.stack(biases).unsqueeze(1) if biases else None)


def fused_gru_after(x: Tensor, initial: Hidden, weights: list[Tensor], directions: int) -> tuple[Tensor, Hidden]:
    """Run `gru_after_step` over all tokens, with torch's kernel."""
    y, h = torch.gru(x, initial[0], weights, True, 1, 0.0, False, directions == 2, True)
    return y, (h,)


def _smallest_lstm() -> tuple[Any, ...]:
    """Return arguments of `torch.lstm`: one sequence of one token, one unit."""
    x, state, weight, bias = torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), torch.zeros(4, 1), torch.zeros(4)
    return x, (state, state), [weight, weight, bias, bias], True, 1, 0.0, False, False, True


LSTM: Final = AutocastOperation("LSTM", torch.lstm, _smallest_lstm)


def fused_lstm(x: Tensor, initial: Hidden, weights: list[Tensor], directions: int) -> tuple[Tensor, Hidden]:
    """Run `lstm_step` over all tokens, with torch's kernel."""
    y, h, c = LSTM(x, initial, weights, True, 1, 0.0, False, directions == 2, True)
    return y, (h, c)


FusedLayer = Callable[[Tensor, Hidden, list[Tensor], int], tuple[Tensor, Hidden]]
"""Run a layer: (B, S, E) -> (B, S, N*K), and the last state of each direction, (N, B, K) each part."""
FUSED: Final[Mapping[CellKind, FusedLayer]] = {"gru-after": fused_gru_after, "lstm": fused_lstm}
