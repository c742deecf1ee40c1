"""AdamW that goes slower where gradients are larger than they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, final

import torch
from torch import nn

from paribus import Optimizer, Range, Traits
from paribus_optim.moments import advanced


@final
class StableAdamW(Optimizer):
    """AdamW with Adafactor's clipping of each tensor's step: "Stable and Low-Precision Training for Large-Scale
    Vision-Language Models" (Wortsman et al. 2023); ModernBERT's. Only matrices decay.
    """

    traits: ClassVar[Traits] = {"pieces": True}

    def __init__(
        self,
        *,
        lr: Annotated[float, "learning rate, before the schedule", Range(above=0)] = 1e-3,
        beta1: Annotated[float, "share of the mean gradient that is kept", Range(0, below=1)] = 0.9,
        beta2: Annotated[float, "share of the mean squared gradient that is kept", Range(0, below=1)] = 0.99,
        eps: Annotated[float, "added to the root of the mean squared gradient", Range(above=0)] = 1e-6,
        weight_decay: Annotated[float, "share of a matrix that is lost a step, times the rate", Range(0)] = 0.01,
    ) -> None:
        self.lr = lr
        self.betas = (beta1, beta2)
        self.eps = eps
        self.weight_decay = weight_decay

    def build(self, matrices: Sequence[nn.Parameter], others: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [
            {"params": list(matrices), "weight_decay": self.weight_decay},
            {"params": list(others), "weight_decay": 0.0},
        ]
        return Stable(groups, {"lr": self.lr, "betas": self.betas, "eps": self.eps})


@final
class Stable(torch.optim.Optimizer):
    """The steps themselves: the rate of each tensor is divided by the root mean square of g / √v, where that is > 1."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step(group)
        return loss

    def _step(self, group: dict[str, Any]) -> None:
        parameters, gradients, squares, directions = advanced(group, self.state)
        if not parameters:
            return
        torch._foreach_clamp_min_(squares, group["eps"] ** 2)
        torch._foreach_sqrt_(squares)
        surprise = torch._foreach_norm(torch._foreach_div(gradients, squares))
        counts = [parameter.numel() ** 0.5 for parameter in parameters]
        slower = torch.stack(torch._foreach_div(surprise, counts)).clamp(min=1.0).reciprocal()
        torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        torch._foreach_mul_(directions, list(slower.unbind()))
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])
