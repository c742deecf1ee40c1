"""Root mean square normalisation by a part of the channels (`partial-norm`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Norm, Range, Role, hookimpl


@final
class PartialNorm(Norm):
    """Normalisation by the root mean square of the first channels, pRMSNorm (Zhang & Sennrich 2019).

    "Root Mean Square Layer Normalization", section 4.2: all channels are divided by the root mean square of the first
    share of them, which is at least one channel. (…, D) -> (…, D), of the input's dtype.
    """

    roles: ClassVar[Mapping[str, Role]] = {"weight": "gain"}

    def __init__(
        self,
        width: int,
        *,
        share: Annotated[
            float, "share of channels that determines the scale (paper: 0.0625)", Range(above=0, high=1)
        ] = 0.25,
        eps: Annotated[float, "added to the mean square", Range(above=0)] = 1e-5,
    ) -> None:
        super().__init__()
        self.eps, self.channels = eps, max(1, round(share * width))
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        square = wide[..., : self.channels].square().mean(-1, keepdim=True)
        return (wide * (square + self.eps).rsqrt() * self.weight).to(x.dtype)


@hookimpl
def norm() -> Mapping[str, type[Norm]]:
    return {"partial-norm": PartialNorm}
