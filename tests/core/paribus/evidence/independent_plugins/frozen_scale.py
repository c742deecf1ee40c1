# norm frozen-scale | mistake: the root mean square is computed under no_grad "to save memory", so its gradient is missing | property: gradients equal finite differences
"""RMS norm that stores little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Norm, Range, Role, hookimpl


@final
class FrozenScale(Norm):
    """Root mean square norm (Zhang & Sennrich 2019). (…, D) -> (…, D)."""

    roles: ClassVar[Mapping[str, Role]] = {"weight": "gain"}

    def __init__(self, width: int, *, eps: Annotated[float, "added to the mean square", Range(above=0)] = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():  # the statistics need no gradient of their own
            scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return x * scale * self.weight


@hookimpl
def norm() -> Mapping[str, type[Norm]]:
    return {"frozen-scale": FrozenScale}
