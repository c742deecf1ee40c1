"""Fourier mixing (`fourier`), FNet's."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from torch import Tensor

from paribus import Attention, AttentionTraits, Context, Cost, Load, Shape, State


@final
class Fourier(Attention):
    """Fourier mixing, the real part of a 2D Fourier transform over tokens and channels (Lee-Thorp et al. 2021).

    "FNet: Mixing Tokens with Fourier Transforms". It has no parameters. A transform mixes all tokens, so the stack
    cannot be causal, and neither padding nor a second document can be masked.
    """

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
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
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # torch has no transform in half precision
        mixed: Tensor = torch.fft.fft2(wide, dim=(-2, -1)).real
        return mixed.to(x.dtype)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        """Return 5 N log2 N operations for a transform of N numbers, the convention of FFTW's benchmarks."""
        size = load.queries * self.width
        return Cost(round(5 * size * math.log2(size)))
