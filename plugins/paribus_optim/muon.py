"""Muon optimizer (`muon`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from torch import Tensor

from paribus import Optimizer, OptimizerTraits, Range, TrainedTensor
from paribus_optim.mixed_rules import MixedRules, OtherTensors, mixed_groups
from paribus_optim.newton_schulz import NewtonSchulz, orthogonal_momentum
from paribus_optim.parameter_groups import decay_weights


@final
class Muon(Optimizer):
    """Muon optimizer: steps of hidden matrices are orthogonal, and AdamW trains the rest (Jordan et al. 2024).

    "Muon: An optimizer for hidden layers in neural networks". A step is the nearest orthogonal matrix to the momentum.
    By default, its root mean square is that of AdamW's steps, "Muon is Scalable for LLM Training" (Liu et al. 2025), so
    that `lr` and `weight_decay` are those of AdamW, for all tensors. Only matrices decay.
    """

    traits: ClassVar[OptimizerTraits] = {"adam_like": False}

    def __init__(
        self,
        *,
        lr: Annotated[float, "learning rate of hidden matrices, before the schedule", Range(above=0)] = 1e-3,
        momentum: Annotated[float, "decay of the mean gradient", Range(0, below=1)] = 0.95,
        nesterov: Annotated[bool, "add the gradient to the mean gradient once more"] = True,
        scale: Annotated[
            Literal["match-rms", "original"],
            "factor of a step: 0.2 √max(rows, columns), which matches AdamW's, or √max(1, rows / columns) (lr: 0.02)",
        ] = "match-rms",
        weight_decay: Annotated[float, "share of a matrix subtracted in a step, times the rate", Range(0)] = 0.1,
        cautious_decay: Annotated[bool, "decay only weights that the step moves towards 0 (Chen et al. 2025)"] = False,
        newton_schulz: NewtonSchulz = NewtonSchulz(),
        adamw: OtherTensors = OtherTensors(),
    ) -> None:
        self.group = {
            "rule": "muon",
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "scale": scale,
            "weight_decay": weight_decay,
            "cautious_decay": cautious_decay,
            "steps": newton_schulz.steps,
            "bfloat16": newton_schulz.bfloat16,
        }
        self.adamw = adamw

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        return MixedRules(mixed_groups(tensors, self.group, self.adamw), {"muon": muon_update})


def muon_update(group: dict[str, Any], state: Mapping[Tensor, dict[str, Any]]) -> None:
    """Take a step of Muon for all tensors of a group, one by one: a batch of matrices would round differently."""
    for parameter in group["params"]:
        if parameter.grad is None:
            continue
        direction = orthogonal_momentum(parameter, parameter.grad, group, state[parameter])
        rows, columns = parameter.shape[-2:]
        match_rms, original = 0.2 * math.sqrt(max(rows, columns)), math.sqrt(max(1.0, rows / columns))
        decay_weights(group, [parameter], [direction])
        parameter.add_(direction, alpha=-group["lr"] * (original if group["scale"] == "original" else match_rms))
