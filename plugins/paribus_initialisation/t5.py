"""T5 initialisation (`t5`)."""

from __future__ import annotations

import math
from typing import Annotated, final

from torch import Tensor

from paribus import Initialisation, ParameterInfo, Range


@final
class T5(Initialisation):
    """T5 initialisation, N(0, 1 / fan in), tables N(0, 1), queries also divided by √head width (Raffel et al. 2020).

    "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", as in its code. The scale of
    queries replaces the scale of scores, so use it with `scores.scaled: false`. Position tables are N(0, 1 / width),
    like T5's biases; an untied head is initialised like the table.
    """

    def __init__(self, *, factor: Annotated[float, "factor of every standard deviation", Range(above=0)] = 1.0) -> None:
        self.factor = factor

    def draw(self, unit: Tensor, about: ParameterInfo) -> Tensor:
        return unit * (self.factor * about.gain / math.sqrt(_variances(about)))


def _variances(about: ParameterInfo) -> int:
    """Return the reciprocal of the variance."""
    names = about.path.split(".")
    if about.role == "embedding":
        return max(1, about.width) if "position" in names else 1
    if about.role == "head" and names[0] == "embedding":
        return 1
    return about.fan_in * max(1, about.head_width) if about.role == "query" else about.fan_in
