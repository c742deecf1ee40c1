"""Optimizer and learning-rate schedule of a training run, as Lightning's `configure_optimizers` returns them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from paribus.slots.optimizer import Optimizer
from paribus.slots.schedule import Schedule
from paribus.train.training_clock import SCHEDULE_STEPS, TrainingClock

if TYPE_CHECKING:
    from lightning.pytorch.utilities.types import OptimizerLRScheduler


def build_optimizer(component: Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer of a model's trainable parameters; matrices and vectors are in separate groups."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trainable if parameter.ndim >= 2]
    vectors = [parameter for parameter in trainable if parameter.ndim < 2]
    return component.build(matrices, vectors)


def scheduled_optimizer(component: Optimizer, model: nn.Module, factor: Callable[[int], float]) -> OptimizerLRScheduler:
    """Build the optimizer of a model, with its learning rate multiplied by `factor(step)` at each step."""
    optimizer = build_optimizer(component, model)
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        # A fused step would unscale float16 gradients after they are clipped, so Lightning refuses to clip them.
        # Without the flag, the gradient scaler unscales them first.
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]  # torch sets it if fused
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def factor_by_step(schedule: Schedule, steps: int, completed_steps: int) -> Callable[[int], float]:
    """Return the factor of a schedule at each step of a run; a resumed run continues after `completed_steps`."""
    return lambda step: schedule.factor(min(completed_steps + step, steps - 1), steps)


def factor_by_time(schedule: Schedule, clock: TrainingClock) -> Callable[[int], float]:
    """Return the schedule's factor by the fraction of a time budget that is spent, whatever the step."""
    return lambda step: schedule.factor(clock.schedule_step(), SCHEDULE_STEPS)
