"""The mean of a loss over all that is evaluated."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torchmetrics import Metric


@final
class Mean(Metric):
    """A sum over a count: the same however examples are batched, and no number where one of the losses was none.

    torchmetrics' own `MeanMetric` leaves out what is no number, and where it is told not to, it leaves out weights.
    """

    full_state_update = False
    higher_is_better = False
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, total: Tensor, count: Tensor) -> None:
        self.total += total.detach()
        self.count += count

    def compute(self) -> Tensor:
        return self.total / self.count
