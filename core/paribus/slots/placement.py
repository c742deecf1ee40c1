"""Slot `placement`: wiring of norms, sublayers and the residual stream (norm placement)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Required

from torch import Tensor, nn

from paribus.parts.shape import Role
from paribus.slots.component import Component, Traits

Sublayer = Callable[[Tensor], Tensor]  # (B, T, D) -> (B, T, D): attention, cross-attention or feed-forward


class PlacementTraits(Traits, total=False):
    """Traits of a placement."""

    final_norm: Required[bool]  # a norm follows the last layer
    identity_path: bool  # before a final norm, a layer without sublayer outputs scales its input; default: True
    output_normalized: bool  # norms of layers or the final norm normalize the output of the stack; default: True
    needs: list[str]  # `layer`: an instance for each layer


class Placement(Component, nn.Module, ABC):
    """Norm placement: wires the sublayers of one layer into the residual stream.

    `sublayers` maps the name of a sublayer (attention, cross, feedforward) to a function of (B, T, D), in order. Store
    norms as `self.norms[name]`, so that their paths are the same in every placement. The trait `final_norm` says
    whether a norm follows the last layer.
    """

    injects: ClassVar[tuple[str, ...]] = ("shape", "norm")
    traits: ClassVar[PlacementTraits]

    @abstractmethod
    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        """Return the output of the layer: (B, T, D) -> (B, T, D)."""

    def gain(self, role: Role) -> float:
        """Return the factor of the initial weights of parameters with this role (DeepNorm's beta)."""
        return 1.0
