"""Adagrad optimizer (`adagrad`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch

from paribus import Optimizer, OptimizerTraits, Range, TrainedTensor


@final
class Adagrad(Optimizer):
    """Adagrad optimizer (Duchi et al. 2011), without weight decay.

    "Adaptive Subgradient Methods". Gradients are divided by the root of the sum of their squares. CTRL used it.
    """

    traits: ClassVar[OptimizerTraits] = {"sharded": True}

    def __init__(
        self,
        *,
        lr: Annotated[float, "learning rate, before the schedule (CTRL: 0.05)", Range(above=0)] = 1e-2,
        initial: Annotated[float, "initial sum of squares", Range(0)] = 0.0,
        eps: Annotated[float, "added to the root", Range(above=0)] = 1e-10,
    ) -> None:
        self.lr = lr
        self.initial = initial
        self.eps = eps

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        matrices = [tensor.parameter for tensor in tensors if tensor.is_matrix]
        vectors = [tensor.parameter for tensor in tensors if not tensor.is_matrix]
        groups = [{"params": matrices}, {"params": vectors}]
        return torch.optim.Adagrad(
            groups, lr=self.lr, initial_accumulator_value=self.initial, eps=self.eps, foreach=True
        )
