"""NorMuon optimizer (`normuon`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, final

import torch
from torch import Tensor

from paribus import Optimizer, OptimizerTraits, Range, TrainedTensor
from paribus_optim.mixed_rules import MixedRules, OtherTensors, mixed_groups
from paribus_optim.newton_schulz import NewtonSchulz, orthogonal_momentum
from paribus_optim.parameter_groups import decay_weights

EPS: Final = 1e-10


@final
class NorMuon(Optimizer):
    """NorMuon optimizer: Muon whose steps are normalised for each neuron, and AdamW for the rest (Li et al. 2025).

    "NorMuon: Making Muon more efficient and scalable". Each row of an orthogonal step is divided by the root of its
    mean square over previous steps; then the step of the matrix gets a root mean square of 0.2, as AdamW's steps have,
    so that `lr` and `weight_decay` are those of AdamW, for all tensors. Only matrices decay.
    """

    traits: ClassVar[OptimizerTraits] = {"adam_like": False}

    def __init__(
        self,
        *,
        lr: Annotated[float, "learning rate of hidden matrices, before the schedule", Range(above=0)] = 1e-3,
        momentum: Annotated[float, "decay of the mean gradient", Range(0, below=1)] = 0.95,
        nesterov: Annotated[bool, "add the gradient to the mean gradient once more"] = True,
        beta2: Annotated[float, "decay of the mean square of each row of a step", Range(0, below=1)] = 0.95,
        weight_decay: Annotated[float, "share of a matrix subtracted in a step, times the rate", Range(0)] = 0.1,
        cautious_decay: Annotated[bool, "decay only weights that the step moves towards 0 (Chen et al. 2025)"] = False,
        newton_schulz: NewtonSchulz = NewtonSchulz(),
        adamw: OtherTensors = OtherTensors(),
    ) -> None:
        self.group = {
            "rule": "normuon",
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "beta2": beta2,
            "weight_decay": weight_decay,
            "cautious_decay": cautious_decay,
            "steps": newton_schulz.steps,
            "bfloat16": newton_schulz.bfloat16,
        }
        self.adamw = adamw

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        return MixedRules(mixed_groups(tensors, self.group, self.adamw), {"normuon": normuon_update})


def normuon_update(group: dict[str, Any], state: Mapping[Tensor, dict[str, Any]]) -> None:
    """Take a step of NorMuon for all tensors of a group, one by one: a batch of matrices would round differently."""
    for parameter in group["params"]:
        if parameter.grad is None:
            continue
        entry = state[parameter]
        direction = orthogonal_momentum(parameter, parameter.grad, group, entry).to(parameter.dtype)
        square = direction.square().mean(-1, keepdim=True)  # (…, O, 1)
        if "square" not in entry:
            entry["square"] = torch.zeros_like(square)
        entry["square"].lerp_(square, 1 - group["beta2"])
        direction = direction / (entry["square"].sqrt() + EPS)
        rows, columns = parameter.shape[-2:]
        norm = torch.linalg.matrix_norm(direction, keepdim=True)  # (…, 1, 1)
        direction *= 0.2 * math.sqrt(rows * columns) / (norm + EPS)
        decay_weights(group, [parameter], [direction])
        parameter.add_(direction, alpha=-group["lr"])
