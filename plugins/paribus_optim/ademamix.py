"""AdEMAMix optimizer (`ademamix`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, final

import torch
from torch import Tensor

from paribus import Optimizer, OptimizerTraits, Range, TrainedTensor
from paribus_optim.moments import update_moments
from paribus_optim.parameter_groups import decay_groups, decay_weights, step_groups


@final
class AdEMAMix(Optimizer):
    """AdEMAMix optimizer, AdamW with a second, slow mean gradient (Pagliardini et al. 2024). Only matrices decay.

    "The AdEMAMix Optimizer: Better, Faster, Older". The share of the slow mean and its decay rise over the first
    `warmup` steps, which the authors set to the length of the run.
    """

    traits: ClassVar[OptimizerTraits] = {"sharded": True}

    def __init__(
        self,
        *,
        lr: Annotated[float, "learning rate, before the schedule", Range(above=0)] = 1e-3,
        beta1: Annotated[float, "decay of the fast mean gradient", Range(0, below=1)] = 0.9,
        beta2: Annotated[float, "decay of the mean squared gradient", Range(0, below=1)] = 0.999,
        beta3: Annotated[float, "decay of the slow mean gradient", Range(above=0, below=1)] = 0.9999,
        alpha: Annotated[float, "factor of the slow mean gradient in a step", Range(0)] = 5.0,
        warmup: Annotated[int, "steps over which `alpha` and `beta3` rise; 0: none", Range(0)] = 0,
        eps: Annotated[float, "added to the root of the mean squared gradient", Range(above=0)] = 1e-8,
        weight_decay: Annotated[float, "share of a matrix subtracted in a step, times the rate", Range(0)] = 0.01,
    ) -> None:
        self.options = {
            "lr": lr,
            "betas": (beta1, beta2),
            "beta3": beta3,
            "alpha": alpha,
            "warmup": warmup,
            "eps": eps,
            "cautious_decay": False,
        }
        self.weight_decay = weight_decay

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        return TwoMeans(decay_groups(tensors, self.weight_decay), self.options)


@final
class TwoMeans(torch.optim.Optimizer):
    """AdEMAMix's update: w - lr ((m1 + a m2) / (√v + ε) + λw), where m1 and v are unbiased, and m2 is not."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return step_groups(self.param_groups, closure, self._update)

    def _update(self, group: dict[str, Any]) -> None:
        parameters, gradients, squares, directions = update_moments(group, self.state)
        roots = torch._foreach_sqrt(squares) if parameters else ()
        for parameter, gradient, root, direction in zip(parameters, gradients, roots, directions, strict=True):
            state = self.state[parameter]
            if "slow" not in state:
                state["slow"] = torch.zeros_like(parameter)
            alpha, beta3 = slow_mean(group, state["step"])
            slow: Tensor = state["slow"].lerp_(gradient, 1 - beta3)
            direction.addcdiv_(slow, root.add_(group["eps"]), value=alpha)
            decay_weights(group, [parameter], [direction])
            parameter.add_(direction, alpha=-group["lr"])


def slow_mean(group: dict[str, Any], step: int) -> tuple[float, float]:
    """Return the factor and the decay of the slow mean at a step: the half-life of the decay rises linearly."""
    progress = min(1.0, step / group["warmup"]) if group["warmup"] else 1.0
    first, last = math.log(max(group["betas"][0], 1e-8)), math.log(group["beta3"])
    decay = math.exp(first * last / ((1 - progress) * last + progress * first))
    return progress * group["alpha"], min(decay, group["beta3"])
