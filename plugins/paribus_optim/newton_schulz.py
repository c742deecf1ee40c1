"""Newton-Schulz iterations, and the orthogonal momentum of Muon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import torch
from torch import Tensor

from paribus import Range

COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)  # of x, x³ and x⁵: steep at 0, and about 1 from 0.7 to 1.2
EPS: Final = 1e-7


@dataclass(frozen=True)
class NewtonSchulz:
    """Newton-Schulz iterations, which make a matrix orthogonal."""

    steps: Annotated[int, "number of iterations", Range(1, 20)] = 5
    bfloat16: Annotated[bool, "compute in bfloat16; else in the precision of the weights"] = True


def orthogonalise(matrices: Tensor, *, steps: int, bfloat16: bool) -> Tensor:
    """Return U p(S) Vᵀ of each matrix U S Vᵀ, where p(S) is about 1: (…, O, I) -> (…, O, I).

    The iterations of Jordan et al. 2024 do not converge to 1: singular values end between about 0.7 and 1.2.
    """
    a, b, c = COEFFICIENTS
    x = matrices.flatten(0, -3) if matrices.ndim > 2 else matrices
    add_product = torch.addmm if x.ndim == 2 else torch.baddbmm
    x = x.bfloat16() if bfloat16 else x
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=EPS)
    for _ in range(steps):
        gram = x @ x.mT
        x = add_product(x, add_product(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).reshape(matrices.shape)


def orthogonal_momentum(parameter: Tensor, gradient: Tensor, group: Mapping[str, Any], state: dict[str, Any]) -> Tensor:
    """Update the mean gradient of a tensor, and return it, or Nesterov's, as orthogonal matrices."""
    if "mean" not in state:
        state["mean"] = torch.zeros_like(parameter)
    mean: Tensor = state["mean"].lerp_(gradient, 1 - group["momentum"])
    direction = gradient.lerp(mean, group["momentum"]) if group["nesterov"] else mean
    return orthogonalise(direction, steps=group["steps"], bfloat16=group["bfloat16"])
