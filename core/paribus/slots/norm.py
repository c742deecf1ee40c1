"""The slot `norm`: what normalises; where it stands is the placement's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

from torch import Tensor, nn

from paribus.slots.component import Component


class Norm(Component, nn.Module, ABC):
    """Normalises rows over their last axis: (…, D) -> (…, D). It is injected as a factory wherever a norm stands."""

    injects: ClassVar[tuple[str, ...]] = ("width",)

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """(…, D) -> (…, D)."""


class Norms(Protocol):
    """How a norm is injected: it makes one of the width of the stream, or of another."""

    def __call__(self, width: int | None = None) -> Norm: ...
