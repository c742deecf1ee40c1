"""Xavier initialisation (`xavier`)."""

from __future__ import annotations

import math
from typing import final

from torch import Tensor

from paribus import Initialisation, ParameterInfo


@final
class Xavier(Initialisation):
    """Xavier initialisation, N(0, 2 / (fan in + fan out)) (Glorot & Bengio 2010).

    "Understanding the difficulty of training deep feedforward neural networks". Tables are looked up and not
    multiplied, so fans do not apply: their vectors start with a norm of about 1, N(0, 1 / width), as in the
    Transformer's code.
    """

    def draw(self, unit: Tensor, about: ParameterInfo) -> Tensor:
        variance = 1 / about.fan_in if about.role == "embedding" else 2 / (about.fan_in + about.fan_out)
        return unit * (math.sqrt(variance) * about.gain)
