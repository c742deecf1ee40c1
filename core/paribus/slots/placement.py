"""The slot `placement`: how norms, sublayers and the residual stream are wired."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

from torch import Tensor, nn

from paribus.parts.shape import Role
from paribus.slots.component import Component, Traits

Sublayer = Callable[[Tensor], Tensor]


class PlacementTraits(Traits, total=False):
    """Traits of a placement."""

    final_norm: bool  # a norm follows the last layer
    needs: list[str]  # `layer`: an instance for each layer


class Placement(Component, nn.Module, ABC):
    """Wires the sublayers of one layer into the residual stream.

    `sublayers` maps a name (attention, cross, feedforward) to a function of (B, T, D), in order. Norms are kept under
    `self.norms[name]`, so that they keep their paths from one placement to another. `traits["final"]` says whether a
    norm follows the last layer.
    """

    injects: ClassVar[tuple[str, ...]] = ("shape", "norm")
    traits: ClassVar[PlacementTraits] = {}

    @abstractmethod
    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        """(B, T, D) -> (B, T, D)."""

    def gain(self, role: Role) -> float:
        """By what the initialisation of parameters with this role is multiplied (DeepNorm's beta)."""
        return 1.0
