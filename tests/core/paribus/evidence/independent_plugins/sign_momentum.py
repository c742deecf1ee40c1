# optimizer sign-momentum | mistake: the step uses the rate given at construction instead of the group's, so warm-up and decay have no effect | property: the schedule's factor scales the steps
"""Lion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, final

import torch

from paribus import Optimizer, Range, TrainedTensor, hookimpl


@final
class SignMomentum(Optimizer):
    """Lion (Chen et al. 2023): steps of a fixed length in the direction of the sign of a momentum. Only matrices decay."""

    def __init__(
        self,
        *,
        lr: Annotated[float, "learning rate, before the schedule", Range(above=0)] = 3e-4,
        beta1: Annotated[float, "share of the momentum in a step", Range(0, below=1)] = 0.9,
        beta2: Annotated[float, "decay of the momentum", Range(0, below=1)] = 0.99,
        weight_decay: Annotated[float, "share of a matrix subtracted in a step, times the rate", Range(0)] = 0.1,
    ) -> None:
        self.lr, self.betas, self.weight_decay = lr, (beta1, beta2), weight_decay

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        matrices = [tensor.parameter for tensor in tensors if tensor.is_matrix]
        vectors = [tensor.parameter for tensor in tensors if not tensor.is_matrix]
        groups = [
            {"params": matrices, "weight_decay": self.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return Lion(groups, lr=self.lr, betas=self.betas)


class Lion(torch.optim.Optimizer):
    """Update of Lion."""

    def __init__(self, groups: Any, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr})
        self.rate, self.betas = lr, betas

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        beta1, beta2 = self.betas
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                direction = torch.lerp(parameter.grad, state["momentum"], beta1).sign()
                parameter.mul_(1 - self.rate * group["weight_decay"])
                parameter.add_(direction, alpha=-self.rate)
                state["momentum"].lerp_(parameter.grad, 1 - beta2)
        return loss


@hookimpl
def optimizer() -> Mapping[str, type[Optimizer]]:
    return {"sign-momentum": SignMomentum}
