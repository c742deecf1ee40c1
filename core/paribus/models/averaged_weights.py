"""Weights that a trial evaluates and saves in place of the last ones: averages over its steps.

`trainer.ema_decay` has an exponential moving average, and an optimizer may have averages of its own.

Lightning's `EMAWeightAveraging` copies the whole module, with a teacher and compiled layers; this stores only tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, final

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from paribus.models.distributed import drop_full_parameters, full_tensor, shard_like
from paribus.models.optimizer_schedule import evaluated_weights
from paribus.slots.optimizer import Optimizer

WARMUP_STEPS: Final = 10  # a short history is averaged over a shorter time: the initial weights are forgotten soon


def decay_at(step: int, decay: float) -> float:
    """Return the share of the average that a step keeps; the first step is 1."""
    return min(decay, step / (WARMUP_STEPS + step - 1))


def average_type(parameter: Tensor) -> torch.dtype:
    """Return the type of a parameter's average: an average in half precision would lose small changes."""
    return torch.promote_types(parameter.dtype, torch.float32)


@final
class AveragedWeights:
    """Moving averages of a model's trainable parameters, at least in float32. Buffers are not averaged."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = model
        self.decay = decay
        self.parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.averages = {
            name: parameter.detach().to(average_type(parameter), copy=True)
            for name, parameter in self.parameters.items()
        }

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Include the weights after a step."""
        weights = [self.parameters[name].detach().to(average.dtype) for name, average in self.averages.items()]
        get_ema_multi_avg_fn(decay_at(step, self.decay))(list(self.averages.values()), weights, step)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model have the averages as its weights for the block."""
        with _replaced(self.model, self._by_parameter()):
            yield

    def copy_to_model(self) -> None:
        """Replace the weights of the model by the averages."""
        _copy(self.model, self._by_parameter())

    def state(self) -> dict[str, Tensor]:
        """Return the averages for a checkpoint; where the model is sharded, all processes must call this."""
        return {name: full_tensor(average) for name, average in self.averages.items()}

    @torch.no_grad()
    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Restore the averages of a checkpoint."""
        for name, average in self.averages.items():
            average.copy_(shard_like(state[name], average))

    def _by_parameter(self) -> dict[Tensor, Tensor]:
        return {self.parameters[name]: average for name, average in self.averages.items()}


@final
class OptimizerAverages:
    """Weights that an optimizer has evaluated and saved in place of those of its steps.

    They follow from its state and the weights of the model, so checkpoints need nothing else.
    """

    def __init__(self, model: nn.Module, component: Optimizer, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.component = component
        self.optimizer = optimizer

    def update(self, step: int) -> None:
        """Do nothing: the optimizer has updated its state."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model have the averages as its weights for the block."""
        with _replaced(self.model, evaluated_weights(self.component, self.optimizer)):
            yield

    def copy_to_model(self) -> None:
        """Replace the weights of the model by the averages, after the last step."""
        _copy(self.model, evaluated_weights(self.component, self.optimizer))

    def state(self) -> dict[str, Tensor]:
        """Return nothing: a checkpoint has the state of the optimizer."""
        return {}

    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Do nothing: the state of the optimizer is restored."""


@contextmanager
def _replaced(model: nn.Module, weights: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Replace parameters of a model by these weights for the block."""
    last = {parameter: parameter.detach().clone() for parameter in weights}
    _copy(model, weights)
    try:
        yield
    finally:
        _copy(model, last)


@torch.no_grad()
def _copy(model: nn.Module, weights: Mapping[Tensor, Tensor]) -> None:
    for parameter, weight in weights.items():
        parameter.copy_(weight)
    drop_full_parameters(model)
