"""Normalisation to one learnt length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Norm, Range, Role


@final
class ScaleNorm(Norm):
    """Each row brought to the same learnt length, g x / |x|: "Transformers without Tears" (Nguyen & Salazar 2019).

    g starts at √D, which is the length of a row of root mean square 1. What is learnt is how far g is from there.
    (…, D) -> (…, D).
    """

    roles: ClassVar[Mapping[str, Role]] = {"length": "bias"}

    def __init__(
        self,
        width: int,
        *,
        eps: Annotated[float, "length below which a row is not stretched further", Range(above=0)] = 1e-5,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.start = math.sqrt(width)
        # From 0 and not from √D: first values are then the same whatever the width, and so are an optimiser's steps.
        self.length = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        long: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=self.eps)
        return x * ((self.start + self.length) / long)
