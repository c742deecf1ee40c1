"""Stochastic gradient descent (`sgd`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch

from paribus import Optimizer, OptimizerTraits, Range, TrainedTensor
from paribus_optim.parameter_groups import decay_groups


@final
class StochasticGradientDescent(Optimizer):
    """Stochastic gradient descent with optional momentum (Robbins & Monro 1951). Only matrices decay.

    "A Stochastic Approximation Method".
    """

    traits: ClassVar[OptimizerTraits] = {"adam_like": False}

    def __init__(
        self,
        *,
        lr: Annotated[float, "learning rate, before the schedule (Luong: 1)", Range(above=0)] = 0.1,
        momentum: Annotated[float, "decay of previous steps that are added to a step", Range(0, below=1)] = 0.0,
        weight_decay: Annotated[float, "share of a matrix subtracted in a step, times the rate", Range(0)] = 0.0,
    ) -> None:
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        groups = decay_groups(tensors, self.weight_decay)
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, fused=True)
