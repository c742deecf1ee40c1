"""Where a decoder's states begin: in what the encoder left behind."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from paribus import Memory, Shape
from paribus_topology.cells import Hidden


@final
class FirstStates(nn.Module):
    """The encoder's last states, layer for layer ("Sequence to Sequence Learning", Sutskever et al. 2014); or, where it
    came back to its first row, tanh(W h) of what it had there (Bahdanau et al. 2015, A.2.2)."""

    def __init__(self, place: Shape, *, parts: int, back: bool) -> None:
        super().__init__()
        self.parts, self.back, self.place = parts, back, place
        if back:
            made = (nn.Linear(place.width, parts * place.width) for _ in range(place.layers))
            self.layers = nn.ModuleList(made)

    def forward(self, memory: Memory, documents: Tensor | None = None) -> list[Hidden]:
        """(B, S, L, P, K) -> of each layer, (1, B, K) each part; for sequences that begin the documents (B,)."""
        assert memory.handed is not None, "a recurrent encoder hands its states on"
        left = self._left(memory.handed, memory.rows.documents, documents)  # (B, L, P, K)
        if not self.back:
            return [tuple(part.unsqueeze(0) for part in layer.unbind(1)) for layer in left.unbind(1)]
        return [
            torch.tanh(widen(layer[:, 0])).unsqueeze(0).chunk(self.parts, dim=-1)
            for widen, layer in zip(self.layers, left.unbind(1), strict=True)
        ]

    def _left(self, handed: Tensor, given: Tensor | None, asked: Tensor | None) -> Tensor:
        """(B, S, …) -> (B, …): at the end of a document, or at its start on the way back; 0 where there is none."""
        if given is None:
            return handed[:, 0 if self.back else -1]
        batch = torch.arange(handed.shape[0], device=handed.device)
        wanted = torch.zeros_like(batch) if asked is None else asked
        mine = (given == wanted.unsqueeze(1)) & (given >= 0)  # (B, S)
        rows = torch.arange(mine.shape[1], device=mine.device)
        at = torch.where(mine, rows, mine.shape[1]).amin(1) if self.back else torch.where(mine, rows, -1).amax(1)
        found = handed[batch, at.clamp(0, mine.shape[1] - 1)]
        return found * mine.any(1).view(-1, 1, 1, 1)

    def flops(self) -> int:
        return 2 * self.place.layers * self.parts * self.place.width**2 if self.back else 0
