"""The norm within attentions: of heads, of what they give, of latents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus.parts.roles import Role


@final
class RootMeanSquare(nn.Module):
    """(…, K) -> (…, K): divided by its root mean square, then given a gain; always of the dtype of what it is given."""

    roles: ClassVar[Mapping[str, Role]] = {"weight": "gain"}

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        # Under autocast rows are narrower than the gain, and torch is fast where both are of one type.
        return functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)
