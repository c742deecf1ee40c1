"""Slot `norm`: normalization of hidden states; the placement decides where norms stand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

from torch import Tensor, nn

from paribus.parts.shape import Cost, Load
from paribus.slots.component import Component


class Norm(Component, nn.Module, ABC):
    """Normalization over the last axis: (…, D) -> (…, D). Other components receive it as a factory (`Norms`)."""

    injects: ClassVar[tuple[str, ...]] = ("width",)

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized hidden states: (…, D) -> (…, D)."""

    def cost(self, load: Load) -> Cost:
        """Return the cost of `load.queries` tokens: none, unless the norm has matrices."""
        return Cost()


class Norms(Protocol):
    """Factory of norms that components receive: `norm()` has the width of the stream, `norm(width)` another."""

    def __call__(self, width: int | None = None) -> Norm:
        """Return a new norm."""
        ...
