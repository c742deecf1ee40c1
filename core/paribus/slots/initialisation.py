"""The slot `initialisation`: how a standard normal draw becomes a parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from paribus.parts.shape import Role
from paribus.slots.component import Component


class ParameterInfo(NamedTuple):
    """What an initialisation may know of a parameter."""

    path: str
    role: Role
    shape: tuple[int, ...]
    layers: int
    branches: int  # residual branches of its stack
    gain: float  # the placement's
    width: int = 0  # of its stack's rows; 0 outside of stacks
    head_width: int = 0  # of its stack's heads

    @property
    def fan_in(self) -> int:
        return self.shape[-1]

    @property
    def fan_out(self) -> int:
        return self.shape[0]


class Initialisation(Component, ABC):
    """Turns `unit`, standard normal draws keyed by (seed, path), into the parameter's first value.

    Every scheme is given the same draws, so two schemes differ by scale and shape alone. Role `bias` is to become 0 and
    `gain` 1 in any scheme: the engine does that and does not ask.
    """

    @abstractmethod
    def draw(self, unit: Tensor, about: ParameterInfo) -> Tensor:
        """The parameter's first value, of the shape and dtype of `unit`."""
