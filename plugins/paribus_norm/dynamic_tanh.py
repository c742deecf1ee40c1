"""A squashing function where a norm would be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Norm, Range, Role


@final
class DynamicTanh(Norm):
    """gain tanh(alpha x) + bias, of each number by itself: "Transformers without Normalization" (Zhu et al. 2025).

    Short rows stay short, where a norm would stretch them: the paper's language models scale their embeddings by √D, as
    `embedding.scale` does. What is learnt of alpha is how far it is from `alpha`. (…, D) -> (…, D).
    """

    roles: ClassVar[Mapping[str, Role]] = {"alpha": "bias", "weight": "gain", "bias": "bias"}

    def __init__(
        self, width: int, *, alpha: Annotated[float, "how steep it is at first", Range(above=0)] = 0.5
    ) -> None:
        super().__init__()
        self.start = alpha
        # From 0 and not from `alpha`: first values are then the same for any option, and an optimiser's steps are too.
        self.alpha = nn.Parameter(torch.zeros(1))
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh((self.start + self.alpha) * x) * self.weight + self.bias
