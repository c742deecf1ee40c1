"""Slot `optimizer`: construction of a torch optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from paribus.parts.shape import Role
from paribus.slots.component import Component, Traits
from paribus.slots.initialisation import ParameterInfo

HIDDEN: Final[frozenset[Role]] = frozenset({"query", "key", "value", "residual", "inner", "weight"})


class OptimizerTraits(Traits, total=False):
    """Traits of an optimizer."""

    sharded: bool  # works on parameters that are sharded over processes
    averages: bool  # evaluates and saves other weights than those of its steps: `evaluated_weights`
    adam_like: bool  # steps are as large as the rate, whatever the size of gradients and weights; default: True


@dataclass(frozen=True, eq=False)
class TrainedTensor:
    """Parameter that is trained, and what an initialisation knows about it: its path, role and place in the model."""

    parameter: nn.Parameter  # the tensor that the optimizer updates
    about: ParameterInfo  # of a tied parameter: that of its first path, or of its first path as a table

    @classmethod
    def of(cls, parameter: nn.Parameter, role: Role, path: str = "body.layers.0.part.weight") -> TrainedTensor:
        """Return a tensor of this role in a stack of one layer: for tests, without a model."""
        shape = tuple(parameter.shape)
        width = shape[-1] if shape else 1
        return cls(parameter, ParameterInfo(path, role, shape, layers=1, branches=2, gain=1.0, width=width))

    @property
    def is_matrix(self) -> bool:
        """Whether weight decay applies to it: it has two axes or more. Tables are matrices, too."""
        return self.parameter.ndim >= 2

    @property
    def is_hidden_matrix(self) -> bool:
        """Whether it is a matrix within a stack, or a stack of such matrices: no table, head, bias, gain or vector.

        The last two axes are a matrix (output, input), as `nn.Linear` stores it; axes before them number matrices.
        """
        return self.is_matrix and self.about.role in HIDDEN and self.about.width > 0


class Optimizer(Component, ABC):
    """Optimizer: builds a `torch.optim.Optimizer`, whose groups may have rules of their own.

    Weight decay applies to matrices only. The schedule multiplies the learning rate of each group, and the engine
    splits groups where an initialisation has factors, so a step reads the options of its group.
    """

    traits: ClassVar[OptimizerTraits] = {}

    @abstractmethod
    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        """Return the optimizer of all trained tensors, in the order of the model's parameters.

        The steps of a tensor depend on this tensor, its `about` and its gradients only.
        """

    def evaluated_weights(self, optimizer: torch.optim.Optimizer) -> Mapping[Tensor, Tensor]:
        """Return the weights to evaluate and save in place of those of the steps, by parameter; by default, none.

        `optimizer` is that of `build`, whose groups may be split; neither it nor its parameters may change. A parameter
        that is missing is evaluated as it is. An optimizer that has such weights declares the trait `averages`.
        """
        return {}
