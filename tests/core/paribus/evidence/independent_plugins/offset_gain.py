# norm offset-gain | mistake: Gemma's factor (1 + weight), but with a weight that starts at 1 (role gain), so that outputs start with root mean square 2 | property: none: only a wrong formula (of the start)
"""RMS norm with a gain as an offset from 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Norm, Range, Role, hookimpl


@final
class OffsetGain(Norm):
    """Root mean square norm, times 1 + weight (Gemma). (…, D) -> (…, D)."""

    roles: ClassVar[Mapping[str, Role]] = {"weight": "gain"}

    def __init__(self, width: int, *, eps: Annotated[float, "added to the mean square", Range(above=0)] = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


@hookimpl
def norm() -> Mapping[str, type[Norm]]:
    return {"offset-gain": OffsetGain}
