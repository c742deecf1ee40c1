"""AdamW optimizer (`adamw`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

import torch

from paribus import Optimizer, OptimizerTraits, Range, TrainedTensor
from paribus_optim.mixed_rules import MixedRules
from paribus_optim.parameter_groups import decay_groups


@final
class AdamW(Optimizer):
    """AdamW optimizer (Loshchilov & Hutter 2019). Only matrices decay.

    "Decoupled Weight Decay Regularization".
    """

    traits: ClassVar[OptimizerTraits] = {"sharded": True}

    def __init__(
        self,
        *,
        lr: Annotated[float, "learning rate, before the schedule", Range(above=0)] = 1e-3,
        beta1: Annotated[float, "decay of the mean gradient", Range(0, below=1)] = 0.9,
        beta2: Annotated[float, "decay of the mean squared gradient", Range(0, below=1)] = 0.999,
        eps: Annotated[float, "added to the root of the mean squared gradient", Range(above=0)] = 1e-8,
        weight_decay: Annotated[float, "share of a matrix subtracted in a step, times the rate", Range(0)] = 0.01,
        cautious_decay: Annotated[bool, "decay only weights that the step moves towards 0 (Chen et al. 2025)"] = False,
    ) -> None:
        self.lr = lr
        self.betas = (beta1, beta2)
        self.eps = eps
        self.weight_decay = weight_decay
        self.cautious_decay = cautious_decay

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        groups = decay_groups(tensors, self.weight_decay)
        if self.cautious_decay:
            options = {"rule": "adamw", "lr": self.lr, "betas": self.betas, "eps": self.eps, "cautious_decay": True}
            return MixedRules([{**group, **options} for group in groups], {})
        return torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=True)
