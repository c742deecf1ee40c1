"""Recurrent cells: one step of one layer, of one direction or of both at once.

N is how many directions there are, G how wide all gates of a cell are together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, final

import torch
from torch import Tensor, nn

Kind = Literal["gru", "gru-after", "lstm"]
Hidden = tuple[Tensor, ...]
"""h, or h and c: (N, B, K) each."""


class Weights(NamedTuple):
    """What a state gives to the gates, of all directions."""

    matrix: Tensor  # (N, K, G)
    bias: Tensor | None  # (N, 1, G)


Step = Callable[[Tensor, Hidden, Weights], Hidden]
"""What the row gives to the gates (N, B, G), and the state before it, to the state behind it."""


def gated_before(given: Tensor, before: Hidden, weights: Weights) -> Hidden:
    """The unit of Bahdanau et al. 2015, after Cho et al. 2014: the reset gate stands before the product.

    z = s(W_z x + U_z h), r = s(W_r x + U_r h), n = tanh(W x + U (r h)), and (1 - z) h + z n; gates are z, r, n.
    """
    (h,) = before
    two = 2 * h.shape[-1]
    z, r = torch.baddbmm(given[..., :two], h, weights.matrix[..., :two]).sigmoid().chunk(2, dim=-1)
    new = torch.baddbmm(given[..., two:], r * h, weights.matrix[..., two:]).tanh()
    return (torch.lerp(h, new.to(h.dtype), z.to(h.dtype)),)  # products have a lower precision under autocast


def gated_after(given: Tensor, before: Hidden, weights: Weights) -> Hidden:
    """The unit as cuDNN and torch have it: the reset gate stands behind the product and its bias.

    r = s(W_r x + U_r h), z likewise, n = tanh(W x + r (U h + b)), and (1 - z) n + z h; gates are r, z, n.
    """
    (h,) = before
    assert weights.bias is not None, "what the state gives has a bias of its own here"
    r_of_x, z_of_x, n_of_x = given.chunk(3, dim=-1)
    r_of_h, z_of_h, n_of_h = torch.baddbmm(weights.bias, h, weights.matrix).chunk(3, dim=-1)
    new = (n_of_x + (r_of_x + r_of_h).sigmoid() * n_of_h).tanh()
    z = (z_of_x + z_of_h).sigmoid()
    return (torch.lerp(new.to(h.dtype), h, z.to(h.dtype)),)


def remembered(given: Tensor, before: Hidden, weights: Weights) -> Hidden:
    """Long short-term memory with a forget gate; gates are input, forget, cell, output, as torch has them."""
    h, c = before
    i, f, g, o = torch.baddbmm(given, h, weights.matrix).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


class Make(NamedTuple):
    """What there is to know of a kind of cell."""

    step: Step
    gates: int
    parts: int  # of its state
    biased: bool  # whether what the state gives has a bias of its own: elsewhere it would do what the row's does


CELLS: Final[Mapping[Kind, Make]] = {
    "gru": Make(gated_before, 3, 1, biased=False),
    "gru-after": Make(gated_after, 3, 1, biased=True),
    "lstm": Make(remembered, 4, 2, biased=False),
}


@final
class Cell(nn.Module):
    """The weights of one direction of one layer: what a row, what is fed beside it, and the state give to the gates."""

    def __init__(self, kind: Kind, reads: int, width: int, *, fed: int = 0) -> None:
        super().__init__()
        gates = CELLS[kind].gates * width
        self.sizes = reads + fed + width, gates
        self.reads = nn.Linear(reads, gates)
        self.fed = nn.Linear(fed, gates, bias=False) if fed else None
        self.repeats = nn.Linear(width, gates, bias=CELLS[kind].biased)

    def listed(self) -> list[Tensor]:
        """As torch lists them, with a bias of the state's that is 0 where there is none."""
        own: Tensor | None = self.repeats.bias
        bias = torch.zeros_like(self.reads.bias) if own is None else own
        return [self.reads.weight, self.repeats.weight, self.reads.bias, bias]

    def flops(self, rows: int) -> int:
        entering, gates = self.sizes
        return 2 * rows * entering * gates


def weights_of(directions: Sequence[Cell]) -> Weights:
    """Those of the directions of one layer side by side, so that one product steps them all."""
    matrix = torch.stack([cell.repeats.weight.T for cell in directions])
    biases: list[Tensor] = [cell.repeats.bias for cell in directions if cell.repeats.bias is not None]
    return Weights(matrix, torch.stack(biases).unsqueeze(1) if biases else None)


def fused_after(x: Tensor, none: Hidden, weights: list[Tensor], ways: int) -> tuple[Tensor, Hidden]:
    """`gated_after` over all rows, on torch's own kernel."""
    y, h = torch.gru(x, none[0], weights, True, 1, 0.0, False, ways == 2, True)
    return y, (h,)


def fused_remembered(x: Tensor, none: Hidden, weights: list[Tensor], ways: int) -> tuple[Tensor, Hidden]:
    """`remembered` over all rows, on torch's own kernel."""
    y, h, c = torch.lstm(x, none, weights, True, 1, 0.0, False, ways == 2, True)
    return y, (h, c)


Fused = Callable[[Tensor, Hidden, list[Tensor], int], tuple[Tensor, Hidden]]
"""(B, S, E) -> (B, S, N*K), and the last state of each way, (N, B, K) each part."""
FUSED: Final[Mapping[Kind, Fused]] = {"gru-after": fused_after, "lstm": fused_remembered}
