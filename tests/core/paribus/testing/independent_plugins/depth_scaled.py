"""Xavier initialisation that shrinks with depth (`depth-scaled`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, final

from torch import Tensor

from paribus import Initialisation, ParameterInfo, Range, hookimpl


@final
class DepthScaled(Initialisation):
    """Depth-scaled initialisation, Xavier's variance divided by the number of the layer (Zhang et al. 2019).

    "Improving Deep Transformer with Depth-Scaled Initialization and Merged Attention", with normal draws. Matrices of
    layer l, counted from 1, are N(0, 2 / (fan in + fan out) / l^depth), and those outside of layers have l = 1; tables
    are N(0, 1 / width).
    """

    def __init__(
        self, *, depth: Annotated[float, "power of the layer's number in the variance; 0: Xavier", Range(0)] = 1.0
    ) -> None:
        self.depth = depth

    def draw(self, unit: Tensor, about: ParameterInfo) -> Tensor:
        if about.role == "embedding":
            return unit * (about.gain / math.sqrt(about.fan_in))
        variance = 2 / (about.fan_in + about.fan_out) / layer_number(about.path) ** self.depth
        return unit * (about.gain * math.sqrt(variance))


def layer_number(path: str) -> int:
    """Return the number of the layer that a parameter belongs to, from 1; also 1 outside of layers."""
    names = path.split(".")
    return int(names[names.index("layers") + 1]) + 1 if "layers" in names else 1


@hookimpl
def initialisation() -> Mapping[str, type[Initialisation]]:
    return {"depth-scaled": DepthScaled}
