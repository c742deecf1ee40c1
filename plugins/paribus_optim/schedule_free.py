"""Schedule-Free AdamW optimizer (`schedule-free`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, final

import torch
from torch import Tensor

from paribus import Optimizer, OptimizerTraits, Range, TrainedTensor
from paribus_optim.parameter_groups import decay_groups, step_groups


@final
class ScheduleFree(Optimizer):
    """Schedule-Free AdamW, which evaluates and saves an average x of its weights (Defazio et al. 2024).

    "The Road Less Scheduled". Gradients are those at y = (1 - β1) z + β1 x, where z takes the steps. The authors use a
    constant rate after a warm-up, `schedule: {name: constant, warmup: 0.05}`, which is larger than AdamW's. Any
    schedule works; a step counts in x by the square of the largest rate so far. Only matrices decay, by their y.
    """

    traits: ClassVar[OptimizerTraits] = {"sharded": True, "averages": True}

    def __init__(
        self,
        *,
        lr: Annotated[float, "learning rate, before the schedule", Range(above=0)] = 2.5e-3,
        beta1: Annotated[float, "share of the average in the weights of a step", Range(above=0, below=1)] = 0.9,
        beta2: Annotated[float, "decay of the mean squared gradient", Range(0, below=1)] = 0.999,
        eps: Annotated[float, "added to the root of the mean squared gradient", Range(above=0)] = 1e-8,
        weight_decay: Annotated[float, "share of a matrix subtracted in a step, times the rate", Range(0)] = 0.01,
    ) -> None:
        self.options = {"lr": lr, "betas": (beta1, beta2), "eps": eps}
        self.beta1 = beta1
        self.weight_decay = weight_decay

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        return ScheduleFreeAdamW(decay_groups(tensors, self.weight_decay), self.options)

    def evaluated_weights(self, optimizer: torch.optim.Optimizer) -> Mapping[Tensor, Tensor]:
        return {
            parameter: torch.lerp(parameter.detach(), state["z"], 1 - 1 / self.beta1)
            for parameter, state in optimizer.state.items()
            if state
        }


@final
class ScheduleFreeAdamW(torch.optim.Optimizer):
    """Updates of z and y by the gradient g at y: z - lr d with d = g / (√v + ε) + λy; x moves to z by a share.

    The state has z, and x follows from it and y. The share is the weight of a step over the sum of all weights so far.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return step_groups(self.param_groups, closure, self._update)

    def _update(self, group: dict[str, Any]) -> None:
        (beta1, beta2), rate = group["betas"], group["lr"]
        for y in group["params"]:
            if y.grad is None:
                continue
            state = self.state[y]
            if not state:
                state.update(step=0, z=y.detach().clone(), square=torch.zeros_like(y), max_rate=0.0, weights=0.0)
            state["step"] += 1
            share = average_share(state, rate)
            square = state["square"].mul_(beta2).addcmul_(y.grad, y.grad, value=1 - beta2)
            direction = y.grad / (square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
            direction.add_(y, alpha=group["weight_decay"])
            y.lerp_(state["z"], share).add_(direction, alpha=-rate * (1 - beta1 * (1 - share)))
            state["z"].add_(direction, alpha=-rate)


def average_share(state: dict[str, Any], rate: float) -> float:
    """Return the share of a step in the average, and include its weight in the `state` of its parameter."""
    state["max_rate"] = max(state["max_rate"], rate)
    weight: float = state["max_rate"] ** 2
    state["weights"] += weight
    return weight / state["weights"] if weight else 0.0
