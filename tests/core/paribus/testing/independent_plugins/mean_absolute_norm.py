"""Normalisation by the mean absolute value (`mean-absolute-norm`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Norm, Range, Role, hookimpl


@final
class MeanAbsoluteNorm(Norm):
    """Normalisation by the mean absolute value, g x / (mean |x| + eps), an L1 norm (Hoffer et al. 2018).

    "Norm matters". It has no squares, which overflow and underflow in narrow types; the mean is computed in float32 or
    wider, and the output has the dtype of the input. (…, D) -> (…, D).
    """

    roles: ClassVar[Mapping[str, Role]] = {"weight": "gain"}

    def __init__(
        self,
        width: int,
        *,
        eps: Annotated[float, "added to the mean absolute value", Range(above=0)] = 1e-6,
        centre: Annotated[bool, "subtract the mean of the channels first"] = False,
    ) -> None:
        super().__init__()
        self.eps, self.centre = eps, centre
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.centre:
            y = y - y.mean(-1, keepdim=True)
        size = y.abs().mean(-1, keepdim=True)
        return (y / (size + self.eps) * self.weight).to(x.dtype)


@hookimpl
def norm() -> Mapping[str, type[Norm]]:
    return {"mean-absolute-norm": MeanAbsoluteNorm}
