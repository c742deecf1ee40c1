"""Layer normalisation (`layernorm`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Norm, Range, Role


@final
class LayerNorm(Norm):
    """Layer normalisation with a gain and a bias (Ba et al. 2016). (…, D) -> (…, D)."""

    roles: ClassVar[Mapping[str, Role]] = {"weight": "gain", "bias": "bias"}

    def __init__(
        self,
        width: int,
        *,
        eps: Annotated[float, "added to the variance (BERT: 1e-12)", Range(above=0)] = 1e-5,
        bias: Annotated[bool, "add a bias (ModernBERT: no)"] = True,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
