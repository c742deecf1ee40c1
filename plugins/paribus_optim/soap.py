"""SOAP optimizer (`soap`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, final

import torch
from torch import Tensor

from paribus import Optimizer, OptimizerTraits, Range, TrainedTensor
from paribus_optim.mixed_rules import MixedRules, OtherTensors, mixed_groups
from paribus_optim.parameter_groups import decay_weights

SIDES: Final = {"row": -2, "column": -1}  # axes of a matrix
RAMP: Final = 1e-6  # on the diagonal, relative to the mean eigenvalue


@final
class Soap(Optimizer):
    """SOAP optimizer: Adam in the eigenbasis of Shampoo, for hidden matrices; AdamW trains the rest (Vyas et al. 2024).

    "SOAP: Improving and Stabilizing Shampoo using Adam". Gradients of a matrix are rotated into the eigenvectors of the
    mean of G Gᵀ and of Gᵀ G, where Adam takes its step. Bases start from the first gradient, and are updated by a power
    iteration every `frequency` steps. The first gradient is diagonal in its own basis, so the first step is Adam's
    without a rotation; the authors' code takes none. Only matrices decay.
    """

    traits: ClassVar[OptimizerTraits] = {"adam_like": False}

    def __init__(
        self,
        *,
        lr: Annotated[float, "learning rate of hidden matrices, before the schedule", Range(above=0)] = 1e-3,
        beta1: Annotated[float, "decay of the mean gradient", Range(0, below=1)] = 0.95,
        beta2: Annotated[
            float, "decay of the mean squared gradient, and of the matrices G Gᵀ and Gᵀ G", Range(0, below=1)
        ] = 0.95,
        frequency: Annotated[int, "steps between two updates of the eigenvectors", Range(1)] = 10,
        max_side: Annotated[int, "rows or columns above which this side of a matrix is not rotated", Range(1)] = 10000,
        eps: Annotated[float, "added to the root of the mean squared gradient", Range(above=0)] = 1e-8,
        weight_decay: Annotated[float, "share of a matrix subtracted in a step, times the rate", Range(0)] = 0.01,
        adamw: OtherTensors = OtherTensors(),
    ) -> None:
        self.group = {
            "rule": "soap",
            "lr": lr,
            "betas": (beta1, beta2),
            "frequency": frequency,
            "max_side": max_side,
            "eps": eps,
            "weight_decay": weight_decay,
            "cautious_decay": False,
        }
        self.adamw = adamw

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        return MixedRules(mixed_groups(tensors, self.group, self.adamw), {"soap": soap_update})


def soap_update(group: dict[str, Any], state: Mapping[Tensor, dict[str, Any]]) -> None:
    """Take a step of SOAP for all tensors of a group, one by one."""
    for parameter in group["params"]:
        if parameter.grad is None:
            continue
        own, gradient = state[parameter], parameter.grad
        if own:
            direction = adam_direction(own, gradient, group)
            update_means(own, gradient, group)
            if own["step"] % group["frequency"] == 0:
                update_bases(own)
        else:
            own.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
            direction = gradient / (gradient.abs() + group["eps"])
            start_bases(own, gradient, group)
        decay_weights(group, [parameter], [direction])
        parameter.add_(direction, alpha=-group["lr"])


def adam_direction(own: dict[str, Any], gradient: Tensor, group: Mapping[str, Any]) -> Tensor:
    """Update the moments of a tensor, the second in the eigenbasis, and return Adam's direction."""
    beta1, beta2 = group["betas"]
    own["step"] += 1
    rotated = rotate(own, gradient)
    mean: Tensor = own["mean"].lerp_(gradient, 1 - beta1)
    square: Tensor = own["square"].mul_(beta2).addcmul_(rotated, rotated, value=1 - beta2)
    root = (square / (1 - beta2 ** own["step"])).sqrt_().add_(group["eps"])
    return rotate_back(own, rotate(own, mean) / (1 - beta1 ** own["step"]) / root)


def start_bases(own: dict[str, Any], gradient: Tensor, group: Mapping[str, Any]) -> None:
    """Form the means of G Gᵀ and Gᵀ G, and their eigenvectors, those of large eigenvalues first.

    One gradient determines no more eigenvectors than its smaller side has. A small ramp on the diagonal determines the
    others, which would depend on rounding.
    """
    for side, axis in SIDES.items():
        size = gradient.shape[axis]
        if size <= group["max_side"]:
            exact = (1 - group["betas"][1]) * gram(gradient.double(), side)
            scale = exact.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
            ramp = torch.linspace(0, RAMP, size, dtype=exact.dtype, device=exact.device).diag_embed()
            own[side] = exact.to(gradient.dtype)
            own[f"{side}_basis"] = torch.linalg.eigh(exact + scale * ramp).eigenvectors.flip(-1).to(gradient.dtype)


def rotated_sides(own: Mapping[str, Any]) -> list[str]:
    """Return the sides of a matrix that have eigenvectors."""
    return [side for side in SIDES if side in own]


def gram(gradient: Tensor, side: str) -> Tensor:
    """Return G Gᵀ for rows and Gᵀ G for columns."""
    return gradient @ gradient.mT if side == "row" else gradient.mT @ gradient


def update_means(own: dict[str, Any], gradient: Tensor, group: Mapping[str, Any]) -> None:
    """Include a gradient in the means of G Gᵀ and Gᵀ G."""
    for side in rotated_sides(own):
        own[side].lerp_(gram(gradient, side), 1 - group["betas"][1])


def update_bases(own: dict[str, Any]) -> None:
    """Take a step of power iteration from the eigenvectors, sorted by their eigenvalues; the mean squares follow."""
    for side in rotated_sides(own):
        basis: Tensor = own[f"{side}_basis"]
        product = own[side] @ basis
        order = (basis * product).sum(-2).argsort(dim=-1, descending=True, stable=True)  # (…, N) -> (…, N)
        rows = order.unsqueeze(-1 if side == "row" else -2)
        own["square"] = own["square"].take_along_dim(rows, SIDES[side])
        own[f"{side}_basis"] = torch.linalg.qr(product.take_along_dim(order.unsqueeze(-2), -1)).Q


def rotate(own: Mapping[str, Any], matrix: Tensor) -> Tensor:
    """Return a matrix in the eigenbasis: (…, O, I) -> (…, O, I)."""
    matrix = own["row_basis"].mT @ matrix if "row" in own else matrix
    return matrix @ own["column_basis"] if "column" in own else matrix


def rotate_back(own: Mapping[str, Any], matrix: Tensor) -> Tensor:
    """Return a matrix of the eigenbasis in the basis of the weights: (…, O, I) -> (…, O, I)."""
    matrix = own["row_basis"] @ matrix if "row" in own else matrix
    return matrix @ own["column_basis"].mT if "column" in own else matrix
