"""Adam without a mean gradient, and with mean squares of rows and columns alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, final

import torch
from torch import nn

from paribus import Optimizer, Range


@final
class Adafactor(Optimizer):
    """Steps as large as the tensor, its squared gradients kept by row and column: "Adafactor: Adaptive Learning Rates
    with Sublinear Memory Cost" (Shazeer & Stern 2018); T5's.

    The rate at step t is no more than 1/√t: with 0.01 and a constant schedule, T5's 1/√max(t, 10 000).
    """

    def __init__(
        self,
        *,
        lr: Annotated[float, "share of a tensor's size that a step comes to, at most", Range(above=0)] = 1e-2,
        decay: Annotated[
            float, "the share of old squares that is kept is 1 - t to the power of -this", Range(0, 1)
        ] = 0.8,
        clip: Annotated[float, "root mean square at which a tensor's step is clipped", Range(1)] = 1.0,
        least: Annotated[float, "size that a tensor is taken to have, at least", Range(above=0)] = 1e-3,
        weight_decay: Annotated[float, "share of a matrix that is lost a step, times the rate", Range(0)] = 0.0,
    ) -> None:
        self.lr = lr
        self.decay = decay
        self.clip = clip
        self.least = least
        self.weight_decay = weight_decay

    def build(self, matrices: Sequence[nn.Parameter], others: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [
            {"params": list(matrices), "weight_decay": self.weight_decay},
            {"params": list(others), "weight_decay": 0.0},
        ]
        return torch.optim.Adafactor(
            groups, lr=self.lr, beta2_decay=-self.decay, eps=(None, self.least), d=self.clip, foreach=True
        )
