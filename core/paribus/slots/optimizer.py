"""The slot `optimizer`."""

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
    """Builds a torch optimizer. Matrices and everything else come apart, as weight decay belongs to matrices."""

    traits: ClassVar[OptimizerTraits] = {}

    @abstractmethod
    def build(self, matrices: Sequence[nn.Parameter], others: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """`others` are biases, gains and all that has fewer than two axes."""
