"""Optimizers with a rule for hidden matrices, and AdamW for all other tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, final

import torch
from torch import Tensor

from paribus import Range, TrainedTensor
from paribus_optim.moments import update_moments
from paribus_optim.parameter_groups import decay_groups, decay_weights, step_groups

Group = dict[str, Any]
Update = Callable[[Group, Mapping[Tensor, dict[str, Any]]], None]


@dataclass(frozen=True)
class OtherTensors:
    """AdamW of the tables, heads and vectors."""

    lr: Annotated[float | None, "learning rate; null: that of hidden matrices", Range(above=0)] = None
    beta1: Annotated[float, "decay of the mean gradient", Range(0, below=1)] = 0.9
    beta2: Annotated[float, "decay of the mean squared gradient", Range(0, below=1)] = 0.95
    eps: Annotated[float, "added to the root of the mean squared gradient", Range(above=0)] = 1e-8
    weight_decay: Annotated[float | None, "of tables and heads; null: that of hidden matrices", Range(0)] = None


def mixed_groups(tensors: Sequence[TrainedTensor], hidden: Group, others: OtherTensors) -> list[Group]:
    """Return the group of hidden matrices, with its options, and the groups of AdamW: other matrices, and vectors.

    `hidden` has `rule`, `lr`, `weight_decay` and `cautious_decay`.
    """
    decay = hidden["weight_decay"] if others.weight_decay is None else others.weight_decay
    adamw = {
        "rule": "adamw",
        "lr": hidden["lr"] if others.lr is None else others.lr,
        "betas": (others.beta1, others.beta2),
        "eps": others.eps,
        "cautious_decay": hidden["cautious_decay"],
    }
    rest = decay_groups([tensor for tensor in tensors if not tensor.is_hidden_matrix], decay)
    matrices = [tensor.parameter for tensor in tensors if tensor.is_hidden_matrix]
    return [{"params": matrices, **hidden}, *({**group, **adamw} for group in rest)]


@final
class MixedRules(torch.optim.Optimizer):
    """Steps of groups by the function that their `rule` names, or by AdamW."""

    def __init__(self, groups: Sequence[Group], rules: Mapping[str, Update]) -> None:
        super().__init__(groups, {})
        self.rules = {**rules, "adamw": adamw_update}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return step_groups(self.param_groups, closure, lambda group: self.rules[group["rule"]](group, self.state))


def adamw_update(group: Group, state: Mapping[Tensor, dict[str, Any]]) -> None:
    """Take a step of AdamW (Loshchilov & Hutter 2019) for all tensors of a group."""
    parameters, _, _, directions = update_moments(group, state)
    if parameters:
        decay_weights(group, parameters, directions)
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])
