"""Initial states of a recurrent decoder, from the encoder's states."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from paribus import Memory, Shape
from paribus_topology.cells import Hidden


@final
class InitialStates(nn.Module):
    """Initial decoder states, from the encoder's final states.

    They are copied layer by layer ("Sequence to Sequence Learning", Sutskever et al. 2014). With a backward direction
    they are tanh(W h) of its state at the first token (Bahdanau et al. 2015, A.2.2).
    """

    def __init__(self, place: Shape, *, parts: int, backwards: bool) -> None:
        super().__init__()
        self.parts, self.backwards, self.place = parts, backwards, place
        if backwards:
            maps = (nn.Linear(place.width, parts * place.width) for _ in range(place.layers))
            self.layers = nn.ModuleList(maps)

    def forward(self, memory: Memory, documents: Tensor | None = None) -> list[Hidden]:
        """Return states of each layer, (1, B, K) each part, of all sequences or of those with `documents` (B,)."""
        assert memory.extra is not None, "a recurrent encoder returns its states"
        final_states = self._final_states(memory.extra, memory.layout.documents, documents)  # (B, L, P, K)
        if not self.backwards:
            return [tuple(part.unsqueeze(0) for part in layer.unbind(1)) for layer in final_states.unbind(1)]
        return [
            torch.tanh(linear(layer[:, 0])).unsqueeze(0).chunk(self.parts, dim=-1)
            for linear, layer in zip(self.layers, final_states.unbind(1), strict=True)
        ]

    def _final_states(self, encoder_states: Tensor, documents: Tensor | None, selected: Tensor | None) -> Tensor:
        """Select the state at the end of a document, or at its start with a backward direction; 0 without it."""
        if documents is None:
            return encoder_states[:, 0 if self.backwards else -1]
        batch = torch.arange(encoder_states.shape[0], device=encoder_states.device)
        document = torch.zeros_like(batch) if selected is None else selected
        is_selected = (documents == document.unsqueeze(1)) & (documents >= 0)  # (B, S)
        index = torch.arange(is_selected.shape[1], device=is_selected.device)
        position = (
            torch.where(is_selected, index, is_selected.shape[1]).amin(1)
            if self.backwards
            else torch.where(is_selected, index, -1).amax(1)
        )
        states = encoder_states[batch, position.clamp(0, is_selected.shape[1] - 1)]
        return states * is_selected.any(1).view(-1, 1, 1, 1)

    def flops(self) -> int:
        return 2 * self.place.layers * self.parts * self.place.width**2 if self.backwards else 0
