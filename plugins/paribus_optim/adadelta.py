"""Steps whose size follows from those before, and not from a rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch
from torch import nn

from paribus import Optimizer, Range, Traits


@final
class Adadelta(Optimizer):
    """A step is as large as the last ones were, over how large gradients were: "ADADELTA: An Adaptive Learning Rate
    Method" (Zeiler 2012); RNNsearch's. Nothing decays.
    """

    traits: ClassVar[Traits] = {"pieces": True}

    def __init__(
        self,
        *,
        lr: Annotated[float, "what steps are multiplied by, before the schedule (Zeiler: 1)", Range(above=0)] = 1.0,
        rho: Annotated[float, "share of both mean squares that is kept", Range(0, below=1)] = 0.95,
        eps: Annotated[float, "added to both mean squares: the first steps are of its root", Range(above=0)] = 1e-6,
    ) -> None:
        self.lr = lr
        self.rho = rho
        self.eps = eps

    def build(self, matrices: Sequence[nn.Parameter], others: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [{"params": list(matrices)}, {"params": list(others)}]
        return torch.optim.Adadelta(groups, lr=self.lr, rho=self.rho, eps=self.eps, foreach=True)
