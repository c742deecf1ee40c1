"""Slot `optimizer`: construction of a torch optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from paribus.slots.component import Component, Traits


class OptimizerTraits(Traits, total=False):
    """Traits of an optimizer."""

    sharded: bool  # works on parameters that are sharded over processes


class Optimizer(Component, ABC):
    """Optimizer: builds a `torch.optim.Optimizer`. Weight decay applies to matrices, which come as a group of their
    own.
    """

    traits: ClassVar[OptimizerTraits] = {}

    @abstractmethod
    def build(self, matrices: Sequence[nn.Parameter], vectors: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer. `vectors` are biases, gains and all parameters with fewer than two axes.

        The steps of a tensor depend on this tensor and its gradients only.
        """
