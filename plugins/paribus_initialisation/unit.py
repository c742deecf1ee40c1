"""Initialisation of vectors with length 1 (`unit`)."""

from __future__ import annotations

import math
from typing import final

from torch import Tensor
from torch.nn import functional

from paribus import Initialisation, ParameterInfo


@final
class Unit(Initialisation):
    """Vectors of length 1 along the residual stream, with random directions (Loshchilov et al. 2024).

    "nGPT". These are rows of tables, heads and matrices that read the stream, and columns of those that write into it.
    The rows of other matrices have about this length: N(0, 1 / fan_in).
    """

    def draw(self, unit: Tensor, about: ParameterInfo) -> Tensor:
        axis = about.stream_axis
        scaled = unit / math.sqrt(about.fan_in) if axis is None else functional.normalize(unit, dim=axis)
        return scaled * about.gain
