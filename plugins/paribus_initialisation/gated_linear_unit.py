"""Initialisation for gated linear units (`gated`)."""

from __future__ import annotations

import math
from typing import final

from torch import Tensor

from paribus import Initialisation, ParameterInfo


@final
class GatedLinearUnit(Initialisation):
    """Initialisation for gated linear units, N(0, 4 / fan in) before a gate, else 1 / fan in (Gehring et al. 2017).

    "Convolutional Sequence to Sequence Learning", section 3.5: a gate divides the variance by about four, so layers
    keep the variance of their inputs. Tables are N(0, 0.1²). Weights before a gate have the role `inner`. The paper
    also multiplies variances by the share that dropout keeps.
    """

    def draw(self, unit: Tensor, about: ParameterInfo) -> Tensor:
        if about.role == "embedding":
            return unit * (0.1 * about.gain)
        return unit * (math.sqrt((4 if about.role == "inner" else 1) / about.fan_in) * about.gain)
