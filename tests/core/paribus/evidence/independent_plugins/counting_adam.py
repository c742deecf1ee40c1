# optimizer counting-adam | mistake: the number of steps is an attribute of the optimizer and not in its state, so bias correction starts again after a resume | property: steps resume: a run continued from a checkpoint equals an uninterrupted one
"""Adam with Nesterov's momentum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, final

import torch

from paribus import Optimizer, Range, TrainedTensor, hookimpl


@final
class CountingAdam(Optimizer):
    """NAdam with decoupled weight decay (Dozat 2016), without its schedule of momentum. Only matrices decay."""

    def __init__(
        self,
        *,
        lr: Annotated[float, "learning rate, before the schedule", Range(above=0)] = 1e-3,
        beta1: Annotated[float, "decay of the mean gradient", Range(0, below=1)] = 0.9,
        beta2: Annotated[float, "decay of the mean squared gradient", Range(0, below=1)] = 0.99,
        weight_decay: Annotated[float, "share of a matrix subtracted in a step, times the rate", Range(0)] = 0.01,
    ) -> None:
        self.lr, self.betas, self.weight_decay = lr, (beta1, beta2), weight_decay

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        matrices = [tensor.parameter for tensor in tensors if tensor.is_matrix]
        vectors = [tensor.parameter for tensor in tensors if not tensor.is_matrix]
        groups = [
            {"params": matrices, "weight_decay": self.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return Nadam(groups, {"lr": self.lr, "betas": self.betas})


class Nadam(torch.optim.Optimizer):
    """Update of NAdam."""

    def __init__(self, groups: Any, defaults: dict[str, Any]) -> None:
        super().__init__(groups, defaults)
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.steps += 1
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                state["mean"].lerp_(parameter.grad, 1 - beta1)
                state["square"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
                ahead = torch.lerp(state["mean"], parameter.grad, 1 - beta1) / (1 - beta1 ** (self.steps + 1))
                root = (state["square"] / (1 - beta2**self.steps)).sqrt() + 1e-8
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.addcdiv_(ahead, root, value=-group["lr"])
        return loss


@hookimpl
def optimizer() -> Mapping[str, type[Optimizer]]:
    return {"counting-adam": CountingAdam}
