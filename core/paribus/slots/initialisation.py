"""Slot `initialisation`: initial weights from standard normal draws, and learning rates that belong to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from torch import Tensor

from paribus.parts.shape import Role
from paribus.slots.component import Component, Traits


class InitialisationTraits(Traits, total=False):
    """Traits of an initialisation."""

    rate_factors: bool  # gives tensors learning rates of their own, for steps of Adam's size; a tied table is refused


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
    bias_of: Role | None = None  # of the bias of a matrix: the role of the matrix

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


class OptimizerFactors(NamedTuple):
    """Factors of an optimizer's options for one tensor."""

    lr: float = 1.0  # learning rate
    weight_decay: float = 1.0  # share of a matrix subtracted in a step, times the rate
    eps: float = 1.0  # what is added to the root of the mean squared gradient


class Initialisation(Component, ABC):
    """Initialisation: turns `unit`, standard normal draws keyed by (seed, path), into the initial weights of a
    parameter.

    Every scheme receives the same draws, so two schemes differ by scale and shape only. Parameters with the role `bias`
    start at 0 and those with the role `gain` at 1 in every scheme; `draw` is not called for them.
    """

    traits: ClassVar[InitialisationTraits] = {}

    @abstractmethod
    def draw(self, unit: Tensor, about: ParameterInfo) -> Tensor:
        """Return the initial weights, of the shape and dtype of `unit`."""

    def optimizer_factors(self, about: ParameterInfo) -> OptimizerFactors:
        """Return the factors of a tensor's learning rate, weight decay and eps, for steps of Adam's size.

        The engine splits the groups of an optimizer by these factors. Schemes with others than 1 have the trait
        `rate_factors`.
        """
        return OptimizerFactors()
