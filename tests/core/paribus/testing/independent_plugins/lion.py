"""Lion optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, final

import torch

from paribus import Optimizer, Range, TrainedTensor, hookimpl


@final
class Lion(Optimizer):
    """Lion optimizer, whose steps are signs. Only matrices decay.

    "Symbolic Discovery of Optimization Algorithms" (Chen et al. 2023).
    """

    def __init__(
        self,
        *,
        lr: Annotated[float, "size of a step, before the schedule", Range(above=0)] = 3e-4,
        beta1: Annotated[float, "share of the mean in the direction of a step", Range(0, below=1)] = 0.9,
        beta2: Annotated[float, "decay of the mean gradient", Range(0, below=1)] = 0.99,
        weight_decay: Annotated[float, "share of a matrix subtracted in a step, times the rate", Range(0)] = 0.1,
    ) -> None:
        self.lr = lr
        self.betas = (beta1, beta2)
        self.weight_decay = weight_decay

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        matrices = [tensor.parameter for tensor in tensors if tensor.is_matrix]
        vectors = [tensor.parameter for tensor in tensors if not tensor.is_matrix]
        groups = [
            {"params": matrices, "weight_decay": self.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return SignedSteps(groups, {"lr": self.lr, "betas": self.betas})


@final
class SignedSteps(torch.optim.Optimizer):
    """Lion's update: w - lr (sign(β1 m + (1 - β1) g) + λ w), and then m is β2 m + (1 - β2) g."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter)
                direction = state["mean"].lerp(parameter.grad, 1 - beta1).sign_()
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(direction, alpha=-group["lr"])
                state["mean"].lerp_(parameter.grad, 1 - beta2)
        return loss


@hookimpl
def optimizer() -> Mapping[str, type[Optimizer]]:
    return {"their-lion": Lion}
