"""Dynamic tanh (`dyt`), in place of a norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Norm, Range, Role


@final
class DynamicTanh(Norm):
    """Dynamic tanh in place of a norm, gain tanh(alpha x) + bias (Zhu et al. 2025).

    "Transformers without Normalization". Small vectors stay small, unlike with a norm: the paper's language models
    scale embeddings by √D, as `embedding.scale` does. The parameter is the difference to the option `alpha`. (…, D) ->
    (…, D).
    """

    roles: ClassVar[Mapping[str, Role]] = {"alpha": "bias", "weight": "gain", "bias": "bias"}

    def __init__(self, width: int, *, alpha: Annotated[float, "initial alpha", Range(above=0)] = 0.5) -> None:
        super().__init__()
        self.initial_alpha = alpha
        # A difference that starts at 0: initial weights, and so an optimizer's steps, are the same for any `alpha`.
        self.alpha = nn.Parameter(torch.zeros(1))
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh((self.initial_alpha + self.alpha) * x) * self.weight + self.bias
