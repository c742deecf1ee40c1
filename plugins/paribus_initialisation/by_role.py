"""Normal initialisation with a standard deviation for each role (`by-role`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, final

from torch import Tensor

from paribus import Initialisation, ParameterInfo, Range

Std = float | None


@dataclass(frozen=True)
class Stds:
    """Standard deviations of roles; null: `std`, 0: the parameters start at zero."""

    query: Annotated[Std, "standard deviation of query projections", Range(0)] = None
    key: Annotated[Std, "standard deviation of key projections", Range(0)] = None
    value: Annotated[Std, "standard deviation of value projections", Range(0)] = None
    residual: Annotated[
        Std, "standard deviation of projections into the residual stream; 0: layers start as the identity", Range(0)
    ] = None
    inner: Annotated[Std, "standard deviation of projections that widen a feed-forward", Range(0)] = None
    embedding: Annotated[Std, "standard deviation of tables", Range(0)] = None
    head: Annotated[Std, "standard deviation of heads, and of an untied table of scores", Range(0)] = None


@final
class ByRole(Initialisation):
    """Normal initialisation, N(0, std²) with a standard deviation for each role, such as 0 for residual projections
    (Zhang et al. 2019).

    "Fixup Initialization" starts the last projection of each residual branch at zero, so that a pre-norm layer starts
    as the identity. With the defaults it equals `normal`; `deep` gives `gpt2`.
    """

    def __init__(
        self,
        *,
        std: Annotated[float, "standard deviation of other roles, and of those that are null", Range(0)] = 0.02,
        stds: Stds = Stds(),
        fan_in: Annotated[bool, "divide standard deviations by √fan in, except those of tables"] = False,
        deep: Annotated[bool, "divide residual projections by √branches"] = False,
    ) -> None:
        self.std, self.stds, self.fan_in, self.deep = std, stds, fan_in, deep

    def draw(self, unit: Tensor, about: ParameterInfo) -> Tensor:
        own = getattr(self.stds, about.role, None)
        std = (self.std if own is None else own) * about.gain
        if self.fan_in and about.role != "embedding":
            std /= math.sqrt(about.fan_in)
        if self.deep and about.role == "residual":
            std /= math.sqrt(max(1, about.branches))
        return unit * std
