"""Draws without tails."""

from __future__ import annotations

import math
from typing import Annotated, final

import torch
from torch import Tensor

from paribus import Initialisation, ParameterInfo, Range


@final
class Truncated(Initialisation):
    """N(0, std²) cut off at `cutoff` standard deviations, and std / √branches for what writes into the residual stream:
    "Smarter, Better, Faster, Longer" (Warner et al. 2024), which is ModernBERT; `deep: false` is "BERT" (Devlin et al.
    2019).

    `std` is that of the draws before the cut, as in torch's `trunc_normal_`: at 2, they end with 0.88 of it. Each draw
    is moved to where as large a share of the cut distribution lies below it, so none changes its sign or its rank.
    """

    def __init__(
        self,
        *,
        std: Annotated[float, "standard deviation before the cut, but for branches", Range(above=0)] = 0.02,
        cutoff: Annotated[float, "how many standard deviations from 0 the cut is", Range(above=0)] = 2.0,
        deep: Annotated[bool, "whether what writes into the residual stream is divided by √branches"] = True,
        head: Annotated[
            float | None, "that of objectives' heads; null: `std` (ModernBERT: std / √branches)", Range(above=0)
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
    """Standard normal draws as draws of the normal distribution that ends at ±`cutoff`."""
    within = math.erf(cutoff / math.sqrt(2))  # what share of the whole distribution is kept
    share = torch.erf(unit.double() / math.sqrt(2)) * within  # of the cut one, from 0 to the draw, times ±2
    return (torch.erfinv(share) * math.sqrt(2)).clamp(-cutoff, cutoff).to(unit.dtype)
