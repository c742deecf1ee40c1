"""Slot `initialisation`: initial weights from standard normal draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from paribus.parts.shape import Role
from paribus.slots.component import Component


class ParameterInfo(NamedTuple):
    """Description of a parameter for an initialisation."""

    path: str  # in the model, such as body.layers.0.attention.heads.q.weight
    role: Role  # its purpose
    shape: tuple[int, ...]  # of the tensor
    layers: int  # number of layers of its stack
    branches: int  # number of residual branches of its stack
    gain: float  # factor that the placement sets for this role
    width: int = 0  # width of its stack; 0 outside of stacks
    head_width: int = 0  # head width of its stack; 0 outside of stacks

    @property
    def fan_in(self) -> int:
        """Width of its input: the last axis."""
        return self.shape[-1]

    @property
    def fan_out(self) -> int:
        """Width of its output: the axis before the last; axes before these two number matrices."""
        return self.shape[-2] if len(self.shape) > 1 else self.shape[0]

    @property
    def stream_axis(self) -> int | None:
        """Axis of a matrix, table or head along the residual stream; None if it has none."""
        if len(self.shape) < 2 or self.role in ("bias", "gain", "vector"):
            return None
        axis = -2 if self.role == "residual" else -1
        return axis if self.width in (0, self.shape[axis]) else None


class Initialisation(Component, ABC):
    """Initialisation: turns `unit`, standard normal draws keyed by (seed, path), into the initial weights of a
    parameter.

    Every scheme receives the same draws, so two schemes differ by scale and shape only. Parameters with the role `bias`
    start at 0 and those with the role `gain` at 1 in every scheme; `draw` is not called for them.
    """

    @abstractmethod
    def draw(self, unit: Tensor, about: ParameterInfo) -> Tensor:
        """Return the initial weights, of the shape and dtype of `unit`."""
