"""Exponential moving average of a model's weights, which a trial with `trainer.ema_decay` evaluates and saves.

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

WARMUP_STEPS: Final = 10  # a short history is averaged over a shorter time: the initial weights are forgotten soon


def decay_at(step: int, decay: float) -> float:
    """Return the share of the average that a step keeps; the first step is 1."""
    return min(decay, step / (WARMUP_STEPS + step - 1))


def average_type(parameter: Tensor) -> torch.dtype:
    """Return the type of a parameter's average: an average in half precision would lose small changes."""
    return torch.promote_types(parameter.dtype, torch.float32)


@final
class AveragedWeights:
    """Averages of a model's trainable parameters, at least in float32. Buffers are not averaged."""

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
        weights = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        self.copy_to_model()
        try:
            yield
        finally:
            self._copy(weights)

    def copy_to_model(self) -> None:
        """Replace the weights of the model by the averages."""
        self._copy(self.averages)

    def state(self) -> dict[str, Tensor]:
        """Return the averages for a checkpoint; where the model is sharded, all processes must call this."""
        return {name: full_tensor(average) for name, average in self.averages.items()}

    @torch.no_grad()
    def resume(self, state: Mapping[str, Tensor]) -> None:
        """Restore the averages of a checkpoint."""
        for name, average in self.averages.items():
            average.copy_(shard_like(state[name], average))

    @torch.no_grad()
    def _copy(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(weights[name])
        drop_full_parameters(self.model)
