"""The attention `fourier`."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from paribus import Attention, Context, Cost, Load, Shape, State, Traits


@final
class Fourier(Attention):
    """The real part of a Fourier transform over rows and width, with nothing to learn: "FNet" (Lee-Thorp et al. 2021).

    Every row meets every other, so it cannot be causal, and a row of padding would take part like any other: neither
    padding nor a second document can be left out of a transform of all rows.
    """

    traits: ClassVar[Traits] = {
        "consumes": [],
        "causal": False,
        "cross": False,
        "documents": False,
        "padding": False,
        "order": False,
        "residual": True,
        "weights": False,
        "decodes": False,
    }

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.width = shape.width

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # no transform is made of halves
        mixed: Tensor = torch.fft.fft2(wide, dim=(-2, -1)).real
        return mixed.to(x.dtype)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        """5 N log2 N operations for a transform of N numbers, by the convention of those who measure them (FFTW)."""
        size = load.queries * self.width
        return Cost(round(5 * size * math.log2(size)))
