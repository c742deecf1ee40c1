"""StableAdamW optimizer (`stable-adamw`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, final

import torch

from paribus import Optimizer, OptimizerTraits, Range, TrainedTensor
from paribus_optim.moments import update_moments
from paribus_optim.parameter_groups import decay_groups, step_groups


@final
class StableAdamW(Optimizer):
    """StableAdamW optimizer, AdamW with Adafactor's update clipping (Wortsman et al. 2023). Only matrices decay.

    "Stable and Low-Precision Training for Large-Scale Vision-Language Models". ModernBERT used it.
    """

    traits: ClassVar[OptimizerTraits] = {"sharded": True}

    def __init__(
        self,
        *,
        lr: Annotated[float, "learning rate, before the schedule", Range(above=0)] = 1e-3,
        beta1: Annotated[float, "decay of the mean gradient", Range(0, below=1)] = 0.9,
        beta2: Annotated[float, "decay of the mean squared gradient", Range(0, below=1)] = 0.99,
        eps: Annotated[float, "added to the root of the mean squared gradient", Range(above=0)] = 1e-6,
        weight_decay: Annotated[float, "share of a matrix subtracted in a step, times the rate", Range(0)] = 0.01,
    ) -> None:
        self.lr = lr
        self.betas = (beta1, beta2)
        self.eps = eps
        self.weight_decay = weight_decay

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        groups = decay_groups(tensors, self.weight_decay)
        return ClippedAdamW(groups, {"lr": self.lr, "betas": self.betas, "eps": self.eps})


@final
class ClippedAdamW(torch.optim.Optimizer):
    """AdamW whose rate is divided, for each tensor, by the root mean square of g / √v where that exceeds 1."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return step_groups(self.param_groups, closure, self._update)

    def _update(self, group: dict[str, Any]) -> None:
        parameters, gradients, squares, directions = update_moments(group, self.state)
        if not parameters:
            return
        torch._foreach_clamp_min_(squares, group["eps"] ** 2)
        torch._foreach_sqrt_(squares)
        ratio_norms = torch._foreach_norm(torch._foreach_div(gradients, squares))
        root_sizes = [parameter.numel() ** 0.5 for parameter in parameters]
        rate_factors = torch.stack(torch._foreach_div(ratio_norms, root_sizes)).clamp(min=1.0).reciprocal()
        torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        torch._foreach_mul_(directions, list(rate_factors.unbind()))
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])
