"""Learned initial states of a recurrent decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Memory, Role, Shape
from paribus_topology.cells import Hidden


@final
class LearnedInitialStates(nn.Module):
    """Initial decoder states that are parameters, the same for every source.

    They start at 0, so that the first step of training equals that of a decoder that starts at 0. The source reaches
    the decoder through its attention only.
    """

    roles: ClassVar[Mapping[str, Role]] = {"states": "bias"}

    def __init__(self, place: Shape, *, parts: int) -> None:
        super().__init__()
        self.states = nn.Parameter(torch.zeros(place.layers, parts, place.width))

    def forward(self, memory: Memory, documents: Tensor | None = None) -> list[Hidden]:
        """Return states of each layer, (1, B, K) each part; every document starts from the same ones."""
        batch = memory.hidden.shape[0]
        return [tuple(part.expand(1, batch, -1) for part in layer.unbind()) for layer in self.states.unbind()]

    def flops(self) -> int:
        return 0
