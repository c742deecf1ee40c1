"""Root mean square normalisation (`rmsnorm`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Norm, Range, Role


@final
class RootMeanSquareNorm(Norm):
    """Root mean square normalisation with a gain (Zhang & Sennrich 2019). (…, D) -> (…, D), of the input's dtype."""

    roles: ClassVar[Mapping[str, Role]] = {"weight": "gain"}

    def __init__(
        self,
        width: int,
        *,
        eps: Annotated[float, "added to the mean square (Llama: 1e-5)", Range(above=0)] = 1e-6,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
