"""Adafactor optimizer (`adafactor`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch

from paribus import Optimizer, OptimizerTraits, Range, TrainedTensor
from paribus_optim.parameter_groups import decay_groups


@final
class Adafactor(Optimizer):
    """Adafactor optimizer (Shazeer & Stern 2018).

    "Adaptive Learning Rates with Sublinear Memory Cost". Squared gradients are stored by row and column, and steps are
    relative to the tensor's size. The rate at step t is at most 1/√t: with 0.01 and a constant schedule it is T5's
    1/√max(t, 10 000).
    """

    traits: ClassVar[OptimizerTraits] = {
        "waits": True,  # for the size of each tensor, in torch's implementation
        "adam_like": False,
    }

    def __init__(
        self,
        *,
        lr: Annotated[float, "maximum size of a step relative to the tensor's", Range(above=0)] = 1e-2,
        decay: Annotated[float, "mean squares decay by 1 - t to the power of -decay", Range(0, 1)] = 0.8,
        clip: Annotated[float, "root mean square at which a tensor's step is clipped", Range(1)] = 1.0,
        min_rms: Annotated[float, "minimum root mean square of a tensor for relative steps", Range(above=0)] = 1e-3,
        weight_decay: Annotated[float, "share of a matrix subtracted in a step, times the rate", Range(0)] = 0.0,
    ) -> None:
        self.lr = lr
        self.decay = decay
        self.clip = clip
        self.min_rms = min_rms
        self.weight_decay = weight_decay

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        groups = decay_groups(tensors, self.weight_decay)
        return torch.optim.Adafactor(
            groups, lr=self.lr, beta2_decay=-self.decay, eps=(None, self.min_rms), d=self.clip, foreach=True
        )
