"""The slot `feedforward`: what is done to each row by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from paribus.slots.component import Component, Cost, Load


class FeedForward(Component, nn.Module, ABC):
    """Transforms each row by itself: (B, T, D) -> (B, T, D), and an auxiliary loss where it has one (MoE)."""

    injects: ClassVar[tuple[str, ...]] = ("shape",)

    @abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) -> (B, T, D), and a scalar to be added to the loss, or None."""

    @abstractmethod
    def cost(self, load: Load) -> Cost:
        """What it does for one sequence."""
