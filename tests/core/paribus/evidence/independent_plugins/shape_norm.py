# norm shape-norm | mistake: `layer_norm(x, x.shape[1:])` takes the statistics over time and channels | property: norm over the last axis only (no access to future tokens, padding, length)
"""Layer norm without a bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Norm, Range, Role, hookimpl


@final
class ShapeNorm(Norm):
    """Layer norm without a bias (Xu et al. 2019). (…, D) -> (…, D)."""

    roles: ClassVar[Mapping[str, Role]] = {"weight": "gain"}

    def __init__(self, width: int, *, eps: Annotated[float, "added to the variance", Range(above=0)] = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[1:], eps=self.eps) * self.weight


@hookimpl
def norm() -> Mapping[str, type[Norm]]:
    return {"shape-norm": ShapeNorm}
