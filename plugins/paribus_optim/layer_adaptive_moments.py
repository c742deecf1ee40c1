"""LAMB optimizer (`lamb`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, final

import torch

from paribus import Optimizer, OptimizerTraits, Range, TrainedTensor
from paribus_optim.moments import update_moments
from paribus_optim.parameter_groups import decay_groups, step_groups


@final
class LayerAdaptiveMoments(Optimizer):
    """LAMB optimizer (You et al. 2020).

    "Large Batch Optimization for Deep Learning". Each matrix takes steps relative to its norm, in Adam's direction.
    Other tensors neither decay nor scale their steps, as in the authors' code, and take Adam's.
    """

    traits: ClassVar[OptimizerTraits] = {"sharded": True, "adam_like": False}

    def __init__(
        self,
        *,
        lr: Annotated[float, "length of a step relative to the matrix's norm (ALBERT: 0.00176)", Range(above=0)] = 2e-3,
        beta1: Annotated[float, "decay of the mean gradient", Range(0, below=1)] = 0.9,
        beta2: Annotated[float, "decay of the mean squared gradient", Range(0, below=1)] = 0.999,
        eps: Annotated[float, "added to the root of the mean squared gradient", Range(above=0)] = 1e-6,
        weight_decay: Annotated[float, "share of a matrix added to its direction", Range(0)] = 0.01,
    ) -> None:
        self.lr = lr
        self.betas = (beta1, beta2)
        self.eps = eps
        self.weight_decay = weight_decay

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        matrices, vectors = decay_groups(tensors, self.weight_decay)
        groups = [{**matrices, "adaptive": True}, {**vectors, "adaptive": False}]
        return Lamb(groups, {"lr": self.lr, "betas": self.betas, "eps": self.eps})


@final
class Lamb(torch.optim.Optimizer):
    """LAMB's update: w - lr |w| / |r + λw| (r + λw), where r is Adam's direction."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return step_groups(self.param_groups, closure, self._update)

    def _update(self, group: dict[str, Any]) -> None:
        parameters, _, _, directions = update_moments(group, self.state)
        if not parameters:
            return
        if group["weight_decay"]:
            torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        if group["adaptive"]:
            weight_norms, step_norms = (
                torch.stack(torch._foreach_norm(tensors)) for tensors in (parameters, directions)
            )
            ratios = (weight_norms / step_norms).where(
                (weight_norms > 0) & (step_norms > 0), 1.0
            )  # no scaling for a norm of 0
            torch._foreach_mul_(directions, list(ratios.unbind()))
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])
