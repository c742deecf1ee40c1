"""Lion optimizer (`lion`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, final

import torch

from paribus import Optimizer, OptimizerTraits, Range, TrainedTensor
from paribus_optim.parameter_groups import decay_groups, decay_weights, step_groups


@final
class Lion(Optimizer):
    """Lion optimizer, whose steps are signs of a mean gradient (Chen et al. 2023). Only matrices decay.

    "Symbolic Discovery of Optimization Algorithms". The authors advise a third to a tenth of AdamW's rate, and as many
    times its decay.
    """

    traits: ClassVar[OptimizerTraits] = {"sharded": True}

    def __init__(
        self,
        *,
        lr: Annotated[float, "size of a step, before the schedule", Range(above=0)] = 1e-4,
        beta1: Annotated[float, "share of the mean gradient in the direction of a step", Range(0, below=1)] = 0.9,
        beta2: Annotated[float, "decay of the mean gradient", Range(0, below=1)] = 0.99,
        weight_decay: Annotated[float, "share of a matrix subtracted in a step, times the rate", Range(0)] = 0.1,
        cautious_decay: Annotated[bool, "decay only weights that the step moves towards 0 (Chen et al. 2025)"] = False,
    ) -> None:
        self.options = {"lr": lr, "betas": (beta1, beta2), "cautious_decay": cautious_decay}
        self.weight_decay = weight_decay

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        return SignSteps(decay_groups(tensors, self.weight_decay), self.options)


@final
class SignSteps(torch.optim.Optimizer):
    """Lion's update: w - lr (sign(β1 m + (1 - β1) g) + λw), and then m is β2 m + (1 - β2) g."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return step_groups(self.param_groups, closure, self._update)

    def _update(self, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["mean"] = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters]
        means = [self.state[parameter]["mean"] for parameter in parameters]
        directions = list(torch._foreach_lerp(means, gradients, 1 - beta1))
        torch._foreach_sign_(directions)
        decay_weights(group, parameters, directions)
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])
        torch._foreach_lerp_(means, gradients, 1 - beta2)
