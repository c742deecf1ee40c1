"""Dynamic erf (`derf`), in place of a norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Norm, Range, Role


@final
class DynamicErf(Norm):
    """Dynamic erf in place of a norm, gain erf(alpha x + shift) + bias (Chen et al. 2025).

    "Stronger Normalization-Free Transformers": `dyt` with the error function and a learned shift, which starts at 0.
    The parameter `alpha` is the difference to the option `alpha`, as in `dyt`. (…, D) -> (…, D).
    """

    roles: ClassVar[Mapping[str, Role]] = {"alpha": "bias", "shift": "bias", "weight": "gain", "bias": "bias"}

    def __init__(self, width: int, *, alpha: Annotated[float, "initial alpha", Range(above=0)] = 0.5) -> None:
        super().__init__()
        self.initial_alpha = alpha
        self.alpha = nn.Parameter(torch.zeros(1))
        self.shift = nn.Parameter(torch.zeros(1))
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.erf((self.initial_alpha + self.alpha) * x + self.shift) * self.weight + self.bias
