"""Adam's moments, for optimizers that use them in another update; all tensors of a group at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class AdamUpdate(NamedTuple):
    """Parameters of a group with gradients, and Adam's update of them."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    squares: list[Tensor]  # unbiased mean squares of the gradients
    directions: list[Tensor]  # unbiased means of the gradients over the roots of `squares`


def update_moments(group: Mapping[str, Any], state: Mapping[Tensor, dict[str, Any]]) -> AdamUpdate:
    """Update Adam's moments (Kingma & Ba 2015) in the `state` of each parameter of a group."""
    beta1, beta2 = group["betas"]
    parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
    states = [state[parameter] for parameter in parameters]
    gradients = [parameter.grad for parameter in parameters]
    if not parameters:
        return AdamUpdate([], [], [], [])
    for state_entry, parameter in zip(states, parameters, strict=True):
        if not state_entry:
            state_entry.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
        state_entry["step"] += 1
    means, squares = [state_entry["mean"] for state_entry in states], [state_entry["square"] for state_entry in states]
    torch._foreach_lerp_(means, gradients, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
    unbiased = torch._foreach_div(squares, _bias(beta2, states))
    roots = torch._foreach_sqrt(unbiased)
    torch._foreach_add_(roots, group["eps"])
    directions = torch._foreach_div(means, _bias(beta1, states))
    torch._foreach_div_(directions, roots)
    return AdamUpdate(parameters, gradients, list(unbiased), list(directions))


def _bias(beta: float, states: Sequence[Mapping[str, Any]]) -> list[float]:
    return [1 - beta ** state["step"] for state in states]
