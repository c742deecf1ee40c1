"""Parameter groups with weight decay, and a step over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from paribus import TrainedTensor


def decay_groups(tensors: Sequence[TrainedTensor], weight_decay: float) -> list[dict[str, Any]]:
    """Return the groups of an optimizer in which only matrices decay: matrices, then vectors."""
    return [
        {"params": [tensor.parameter for tensor in tensors if tensor.is_matrix], "weight_decay": weight_decay},
        {"params": [tensor.parameter for tensor in tensors if not tensor.is_matrix], "weight_decay": 0.0},
    ]


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
