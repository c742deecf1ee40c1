"""Adan optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, final

import torch

from paribus import Optimizer, Range, TrainedTensor, hookimpl


@final
class Adan(Optimizer):
    """Adan optimizer, which estimates Nesterov's momentum from differences of gradients. Only matrices decay.

    "Adan: Adaptive Nesterov Momentum Algorithm" (Xie et al. 2022), with the betas of its code, which are decays. The
    first gradient has no difference.
    """

    def __init__(
        self,
        *,
        lr: Annotated[float, "learning rate, before the schedule", Range(above=0)] = 2e-3,
        beta1: Annotated[float, "decay of the mean gradient", Range(0, below=1)] = 0.98,
        beta2: Annotated[float, "decay of the mean difference of gradients", Range(0, below=1)] = 0.92,
        beta3: Annotated[float, "decay of the mean square", Range(0, below=1)] = 0.99,
        eps: Annotated[float, "added to the root of the mean square", Range(above=0)] = 1e-8,
        weight_decay: Annotated[float, "share by which a matrix is divided in a step, times the rate", Range(0)] = 0.02,
    ) -> None:
        self.lr = lr
        self.betas = (beta1, beta2, beta3)
        self.eps = eps
        self.weight_decay = weight_decay

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        matrices = [tensor.parameter for tensor in tensors if tensor.is_matrix]
        vectors = [tensor.parameter for tensor in tensors if not tensor.is_matrix]
        groups = [
            {"params": matrices, "weight_decay": self.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return NesterovMoments(groups, {"lr": self.lr, "betas": self.betas, "eps": self.eps})


@final
class NesterovMoments(torch.optim.Optimizer):
    """Adan's update: (w - lr (m + β2 d) / (√n + ε)) / (1 + lr λ), where d is the mean of the differences of gradients
    and n that of the squares of g + β2 times the difference; all means are unbiased.
    """

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
        beta1, beta2, beta3 = group["betas"]
        state = self.state[parameter]
        if not state:
            state.update({name: torch.zeros_like(parameter) for name in ("mean", "difference", "square")})
            state["step"], state["previous"] = 0, gradient.clone()
        state["step"] += 1
        change = gradient - state["previous"]
        ahead = gradient + beta2 * change
        state["mean"].lerp_(gradient, 1 - beta1)
        state["difference"].lerp_(change, 1 - beta2)
        state["square"].mul_(beta3).addcmul_(ahead, ahead, value=1 - beta3)
        state["previous"].copy_(gradient)
        bias1, bias2, bias3 = (1 - beta ** state["step"] for beta in group["betas"])
        root = (state["square"] / bias3).sqrt_().add_(group["eps"])
        direction = state["mean"] / bias1 + state["difference"] * (beta2 / bias2)
        parameter.addcdiv_(direction, root, value=-group["lr"])
        parameter.div_(1 + group["lr"] * group["weight_decay"])


@hookimpl
def optimizer() -> Mapping[str, type[Optimizer]]:
    return {"adan": Adan}
