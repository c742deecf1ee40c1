"""Scales that keep the variance of what passes through."""

from __future__ import annotations

import math
from typing import final

from torch import Tensor

from paribus import Initialisation, ParameterInfo


@final
class Xavier(Initialisation):
    """N(0, 2 / (fan in + fan out)): "Understanding the difficulty of training deep feedforward neural networks" (Glorot
    & Bengio 2010).

    A table's rows are looked up, never summed over, so its fans mean nothing: each starts with a norm of about 1, by
    N(0, 1 / width), as in the Transformer's own code.
    """

    def draw(self, unit: Tensor, about: ParameterInfo) -> Tensor:
        variance = 1 / about.fan_in if about.role == "embedding" else 2 / (about.fan_in + about.fan_out)
        return unit * (math.sqrt(variance) * about.gain)
