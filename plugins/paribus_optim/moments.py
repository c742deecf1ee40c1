"""The two moments of Adam, for optimizers that make another step of them; all tensors of a group at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Step(NamedTuple):
    """The parameters of a group that have gradients, and what Adam makes of these."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    squares: list[Tensor]  # their mean squares, unbiased
    directions: list[Tensor]  # their means over the roots of those, both unbiased


def advanced(group: Mapping[str, Any], state: Mapping[Tensor, dict[str, Any]]) -> Step:
    """Updates the moments of a group, "Adam" (Kingma & Ba 2015), in the `state` of each parameter."""
    beta1, beta2 = group["betas"]
    parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
    held = [state[parameter] for parameter in parameters]
    gradients = [parameter.grad for parameter in parameters]
    if not parameters:
        return Step([], [], [], [])
    for own, parameter in zip(held, parameters, strict=True):
        if not own:
            own.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
        own["step"] += 1
    means, squares = [own["mean"] for own in held], [own["square"] for own in held]
    torch._foreach_lerp_(means, gradients, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
    unbiased = torch._foreach_div(squares, _bias(beta2, held))
    roots = torch._foreach_sqrt(unbiased)
    torch._foreach_add_(roots, group["eps"])
    directions = torch._foreach_div(means, _bias(beta1, held))
    torch._foreach_div_(directions, roots)
    return Step(parameters, gradients, list(unbiased), list(directions))


def _bias(beta: float, held: Sequence[Mapping[str, Any]]) -> list[float]:
    return [1 - beta ** own["step"] for own in held]
