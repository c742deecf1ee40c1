"""Slot `feedforward`: the sublayer that transforms each position by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from paribus.parts.shape import Cost, Load
from paribus.slots.component import Component


class FeedForward(Component, nn.Module, ABC):
    """Feed-forward sublayer: (B, T, D) -> (B, T, D), each position by itself, with an optional auxiliary loss (MoE)."""

    injects: ClassVar[tuple[str, ...]] = ("shape",)

    @abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the output, (B, T, D), and a scalar that is added to the loss, or None."""

    @abstractmethod
    def cost(self, load: Load) -> Cost:
        """Return the cost of one sequence."""
