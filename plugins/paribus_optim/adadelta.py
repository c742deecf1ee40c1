"""Adadelta optimizer (`adadelta`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch

from paribus import Optimizer, OptimizerTraits, Range, TrainedTensor


@final
class Adadelta(Optimizer):
    """Adadelta optimizer (Zeiler 2012), without weight decay.

    A step is the root mean square of previous steps over that of gradients. RNNsearch used it.
    """

    traits: ClassVar[OptimizerTraits] = {"sharded": True, "adam_like": False}

    def __init__(
        self,
        *,
        lr: Annotated[float, "factor of steps, before the schedule (Zeiler: 1)", Range(above=0)] = 1.0,
        rho: Annotated[float, "decay of both mean squares", Range(0, below=1)] = 0.95,
        eps: Annotated[
            float, "added to both mean squares; the first steps have the size of its root", Range(above=0)
        ] = 1e-6,
    ) -> None:
        self.lr = lr
        self.rho = rho
        self.eps = eps

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        matrices = [tensor.parameter for tensor in tensors if tensor.is_matrix]
        vectors = [tensor.parameter for tensor in tensors if not tensor.is_matrix]
        groups = [{"params": matrices}, {"params": vectors}]
        return torch.optim.Adadelta(groups, lr=self.lr, rho=self.rho, eps=self.eps, foreach=True)
