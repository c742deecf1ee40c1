"""The slot `optimizer`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import nn

from paribus.slots.component import Component


class Optimizer(Component, ABC):
    """Builds a torch optimizer. Matrices and everything else come apart, as weight decay belongs to matrices."""

    @abstractmethod
    def build(self, matrices: Sequence[nn.Parameter], others: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """`others` are biases, gains and all that has fewer than two axes."""
