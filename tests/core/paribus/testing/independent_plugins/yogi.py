"""Yogi optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, final

import torch

from paribus import Optimizer, Range, TrainedTensor, hookimpl


@final
class Yogi(Optimizer):
    """Yogi optimizer: Adam whose mean square changes by a share of the new square, however large it is. Only matrices
    decay.

    "Adaptive Methods for Nonconvex Optimization" (Zaheer et al. 2018).
    """

    def __init__(
        self,
        *,
        lr: Annotated[float, "learning rate, before the schedule", Range(above=0)] = 3e-3,
        beta1: Annotated[float, "decay of the mean gradient", Range(0, below=1)] = 0.9,
        beta2: Annotated[float, "1 minus the share of a squared gradient that is added", Range(0, below=1)] = 0.999,
        eps: Annotated[float, "added to the root of the mean squared gradient", Range(above=0)] = 1e-3,
        initial: Annotated[float, "initial value of the mean square", Range(0)] = 1e-6,
        weight_decay: Annotated[float, "share of a matrix subtracted in a step, times the rate", Range(0)] = 0.01,
    ) -> None:
        self.lr = lr
        self.betas = (beta1, beta2)
        self.eps = eps
        self.initial = initial
        self.weight_decay = weight_decay

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        matrices = [tensor.parameter for tensor in tensors if tensor.is_matrix]
        vectors = [tensor.parameter for tensor in tensors if not tensor.is_matrix]
        groups = [
            {"params": matrices, "weight_decay": self.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return Additive(groups, {"lr": self.lr, "betas": self.betas, "eps": self.eps, "initial": self.initial})


@final
class Additive(torch.optim.Optimizer):
    """Yogi's update: v - (1 - β2) sign(v - g²) g², and a step of m / (√v + ε), where both means are unbiased."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(group, parameter, parameter.grad)
        return loss

    def _update(self, group: dict[str, Any], parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        beta1, beta2 = group["betas"]
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.full_like(parameter, group["initial"])
        state["step"] += 1
        square = gradient.square()
        state["mean"].lerp_(gradient, 1 - beta1)
        state["square"].addcmul_((state["square"] - square).sign_(), square, value=beta2 - 1)
        root = (state["square"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(state["mean"], root, value=-group["lr"] / (1 - beta1 ** state["step"]))


@hookimpl
def optimizer() -> Mapping[str, type[Optimizer]]:
    return {"yogi": Yogi}
