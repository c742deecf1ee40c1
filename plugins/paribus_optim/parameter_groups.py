"""Parameter groups with weight decay, and a step over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paribus import TrainedTensor


def decay_groups(tensors: Sequence[TrainedTensor], weight_decay: float) -> list[dict[str, Any]]:
    """Return the groups of an optimizer in which only matrices decay: matrices, then vectors."""
    return [
        {"params": [tensor.parameter for tensor in tensors if tensor.is_matrix], "weight_decay": weight_decay},
        {"params": [tensor.parameter for tensor in tensors if not tensor.is_matrix], "weight_decay": 0.0},
    ]


def decay_weights(group: Mapping[str, Any], parameters: Sequence[Tensor], directions: Sequence[Tensor]) -> None:
    """Decay weights by the rate times `weight_decay`; with `cautious_decay`, those that the step moves towards 0.

    "Cautious Weight Decay" (Chen et al. 2025). `directions` are subtracted in the step.
    """
    share = group["lr"] * group["weight_decay"]
    if not share:
        return
    if not group["cautious_decay"]:
        torch._foreach_mul_(list(parameters), 1 - share)
        return
    for parameter, direction in zip(parameters, directions, strict=True):
        parameter.sub_(parameter * (direction * parameter >= 0), alpha=share)


def step_groups(
    groups: Sequence[dict[str, Any]], closure: Callable[[], Any] | None, update: Callable[[dict[str, Any]], None]
) -> Any:
    """Evaluate the closure, update every group, and return the loss, as `torch.optim.Optimizer.step` does."""
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    for group in groups:
        update(group)
    return loss
