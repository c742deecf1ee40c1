"""Learned mix of the layers of a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Role


@final
class LayerMix(nn.Module):
    """Learned mix of layers, gamma sum_j softmax(w)_j h_j (Peters et al. 2018, equation 1).

    It starts as the mean of the layers. The paper's optional norm of each layer is left out. (B, T, D) each -> (B, T,
    D).
    """

    roles: ClassVar[Mapping[str, Role]] = {"weights": "bias", "gamma": "gain"}

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """(B, T, D) each -> (B, T, D)."""
        shares = (self.gamma * self.weights.softmax(0)).unbind()
        return torch.stack([share * layer for share, layer in zip(shares, layers, strict=True)]).sum(0)
