"""Adam, with steps as long as the tensors that take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, final

import torch
from torch import nn

from paribus import Optimizer, Range, Traits
from paribus_optim.moments import advanced


@final
class LayerAdaptiveMoments(Optimizer):
    """Each matrix takes steps as long as it is itself, in Adam's direction: LAMB, "Large Batch Optimization for Deep
    Learning" (You et al. 2020).

    As in the authors' code what is no matrix neither decays nor has its steps measured, and takes those of Adam.
    """

    traits: ClassVar[Traits] = {"pieces": True}

    def __init__(
        self,
        *,
        lr: Annotated[float, "share of a matrix's length that a step is long (ALBERT: 0.00176)", Range(above=0)] = 2e-3,
        beta1: Annotated[float, "share of the mean gradient that is kept", Range(0, below=1)] = 0.9,
        beta2: Annotated[float, "share of the mean squared gradient that is kept", Range(0, below=1)] = 0.999,
        eps: Annotated[float, "added to the root of the mean squared gradient", Range(above=0)] = 1e-6,
        weight_decay: Annotated[float, "share of a matrix that is added to its direction", Range(0)] = 0.01,
    ) -> None:
        self.lr = lr
        self.betas = (beta1, beta2)
        self.eps = eps
        self.weight_decay = weight_decay

    def build(self, matrices: Sequence[nn.Parameter], others: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [
            {"params": list(matrices), "weight_decay": self.weight_decay, "adaptive": True},
            {"params": list(others), "weight_decay": 0.0, "adaptive": False},
        ]
        return Lamb(groups, {"lr": self.lr, "betas": self.betas, "eps": self.eps})


@final
class Lamb(torch.optim.Optimizer):
    """The steps themselves: w - lr |w| / |r + λw| (r + λw), where r is Adam's direction."""

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
        parameters, _, _, directions = advanced(group, self.state)
        if not parameters:
            return
        if group["weight_decay"]:
            torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        if group["adaptive"]:
            own, length = (torch.stack(torch._foreach_norm(tensors)) for tensors in (parameters, directions))
            ratios = (own / length).where((own > 0) & (length > 0), 1.0)  # what is 0 has no length to go by
            torch._foreach_mul_(directions, list(ratios.unbind()))
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])
