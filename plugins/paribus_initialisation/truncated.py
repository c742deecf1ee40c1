"""Truncated normal initialisation (`truncated`)."""

from __future__ import annotations

import math
from typing import Annotated, final

import torch
from torch import Tensor

from paribus import Initialisation, ParameterInfo, Range


@final
class Truncated(Initialisation):
    """Truncated normal initialisation, std / √branches for residual projections (Warner et al. 2024).

    "Smarter, Better, Faster, Longer" (ModernBERT); `deep: false` is "BERT" (Devlin et al. 2019). `std` is the standard
    deviation before truncation at `cutoff`, as in torch's `trunc_normal_`; at 2 it becomes 0.88 of it. Each draw is
    mapped to the same quantile of the truncated distribution, so no draw changes its sign or rank.
    """

    def __init__(
        self,
        *,
        std: Annotated[
            float, "standard deviation before truncation, except for residual projections", Range(above=0)
        ] = 0.02,
        cutoff: Annotated[float, "standard deviations at which draws are truncated", Range(above=0)] = 2.0,
        deep: Annotated[bool, "divide residual projections by √branches"] = True,
        head: Annotated[
            float | None,
            "standard deviation of objectives' heads; null: `std` (ModernBERT: std / √branches)",
            Range(above=0),
        ] = None,
    ) -> None:
        self.std = std
        self.cutoff = cutoff
        self.deep = deep
        self.head = std if head is None else head

    def draw(self, unit: Tensor, about: ParameterInfo) -> Tensor:
        depth = math.sqrt(max(1, about.branches)) if self.deep and about.role == "residual" else 1.0
        std = self.head if about.role == "head" else self.std
        return truncated(unit, self.cutoff) * (std * about.gain / depth)


def truncated(unit: Tensor, cutoff: float) -> Tensor:
    """Map standard normal draws to a normal distribution truncated at ±`cutoff`."""
    mass = math.erf(cutoff / math.sqrt(2))  # probability within the cutoff
    share = torch.erf(unit.double() / math.sqrt(2)) * mass  # signed probability between 0 and the draw, times 2
    return (torch.erfinv(share) * math.sqrt(2)).clamp(-cutoff, cutoff).to(unit.dtype)
