"""T5's scales, which leave nothing for attention to scale."""

from __future__ import annotations

import math
from typing import Annotated, final

from torch import Tensor

from paribus import Initialisation, ParameterInfo, Range


@final
class T5(Initialisation):
    """N(0, 1 / fan in), but tables of rows N(0, 1), and queries smaller by the root of a head's width: "Exploring the
    Limits of Transfer Learning with a Unified Text-to-Text Transformer" (Raffel et al. 2020), as in its code.

    The queries' is what scores are divided by elsewhere, so it belongs with `scores.scaled: false`. Tables of positions
    start as T5's biases do, N(0, 1 / width); a head of its own, where embeddings are not tied, as the table does.
    """

    def __init__(
        self, *, factor: Annotated[float, "what every standard deviation is multiplied by", Range(above=0)] = 1.0
    ) -> None:
        self.factor = factor

    def draw(self, unit: Tensor, about: ParameterInfo) -> Tensor:
        return unit * (self.factor * about.gain / math.sqrt(_variances(about)))


def _variances(about: ParameterInfo) -> int:
    """One over the variance."""
    places = about.path.split(".")
    if about.role == "embedding":
        return max(1, about.width) if "position" in places else 1
    if about.role == "head" and places[0] == "embedding":
        return 1
    return about.fan_in * max(1, about.head_width) if about.role == "query" else about.fan_in
