"""Normalisation to one learned length (`scalenorm`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Norm, Range, Role


@final
class ScaleNorm(Norm):
    """Normalisation to one learned length, g x / |x| (Nguyen & Salazar 2019). (…, D) -> (…, D).

    "Transformers without Tears". g starts at √D, the length of a vector with root mean square 1. The parameter is the
    difference to √D.
    """

    roles: ClassVar[Mapping[str, Role]] = {"length": "bias"}

    def __init__(
        self,
        width: int,
        *,
        eps: Annotated[float, "length below which a vector is not scaled up further", Range(above=0)] = 1e-5,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.initial_length = math.sqrt(width)
        # A difference that starts at 0: initial weights, and so an optimizer's steps, are the same for any width.
        self.length = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=self.eps)
        return x * ((self.initial_length + self.length) / norm)
