"""GPT-2 initialisation (`gpt2`)."""

from __future__ import annotations

import math
from typing import Annotated, final

from torch import Tensor

from paribus import Initialisation, ParameterInfo, Range


@final
class Gpt2(Initialisation):
    """GPT-2 initialisation, N(0, std²), and std / √branches for residual projections (Radford et al. 2019).

    "Language Models are Unsupervised Multitask Learners". A decoder of L layers has 2 L branches; their sum then has
    the variance of one.
    """

    def __init__(
        self, *, std: Annotated[float, "standard deviation, except for residual projections", Range(above=0)] = 0.02
    ) -> None:
        self.std = std

    def draw(self, unit: Tensor, about: ParameterInfo) -> Tensor:
        depth = math.sqrt(max(1, about.branches)) if about.role == "residual" else 1.0
        return unit * (self.std * about.gain / depth)
