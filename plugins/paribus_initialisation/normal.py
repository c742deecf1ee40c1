"""Normal initialisation (`normal`)."""

from __future__ import annotations

from typing import Annotated, final

from torch import Tensor

from paribus import Initialisation, ParameterInfo, Range


@final
class Normal(Initialisation):
    """Normal initialisation, N(0, std²) for every matrix and table (Devlin et al. 2019).

    "BERT", without its truncation.
    """

    def __init__(
        self, *, std: Annotated[float, "standard deviation of every parameter", Range(above=0)] = 0.02
    ) -> None:
        self.std = std

    def draw(self, unit: Tensor, about: ParameterInfo) -> Tensor:
        return unit * (self.std * about.gain)
