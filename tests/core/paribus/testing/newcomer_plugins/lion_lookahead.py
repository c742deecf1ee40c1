"""Lion with Lookahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, final

import torch

from paribus import Optimizer, Range, TrainedTensor


class LionLookaheadSteps(torch.optim.Optimizer):
    """Steps of Lion; every few steps, slow weights follow the weights and replace them."""

    def __init__(self, groups: Any, **options: float) -> None:
        super().__init__(groups, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch overloads it
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.float32)
                    state["mean"] = torch.zeros_like(p)
                    state["slow"] = p.detach().clone()
                state["step"] += 1
                update = state["mean"].mul(group["beta1"]).add(p.grad, alpha=1 - group["beta1"]).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"])
                state["mean"].lerp_(p.grad, 1 - group["beta2"])
                if int(state["step"]) % group["every"] == 0:
                    state["slow"].lerp_(p, group["share"])
                    p.copy_(state["slow"])
        return loss


@final
class LionLookahead(Optimizer):
    """Lion, "Symbolic Discovery of Optimization Algorithms" (Chen et al. 2023), with Lookahead (Zhang et al. 2019)."""

    def __init__(
        self,
        *,
        lr: Annotated[float, "learning rate, before the schedule", Range(above=0)] = 3e-4,
        beta1: Annotated[float, "weight of the momentum in a step", Range(0, below=1)] = 0.9,
        beta2: Annotated[float, "decay of the momentum", Range(0, below=1)] = 0.99,
        weight_decay: Annotated[float, "share of a matrix that is lost a step, times the rate", Range(0)] = 0.1,
        every: Annotated[int, "steps between two updates of the slow weights", Range(1)] = 5,
        share: Annotated[float, "share of the way that slow weights go", Range(above=0, high=1)] = 0.8,
    ) -> None:
        self.lr, self.beta1, self.beta2 = lr, beta1, beta2
        self.weight_decay, self.every, self.share = weight_decay, every, share

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        matrices = [tensor.parameter for tensor in tensors if tensor.is_matrix]
        vectors = [tensor.parameter for tensor in tensors if not tensor.is_matrix]
        groups = [
            {"params": matrices, "weight_decay": self.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return LionLookaheadSteps(
            groups,
            lr=self.lr,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=self.weight_decay,
            every=self.every,
            share=self.share,
        )
