"""No normalisation (`none`), a control."""

from __future__ import annotations

from typing import final

from torch import Tensor

from paribus import Norm


@final
class Identity(Norm):
    """No normalisation: the control of a study of norms. (…, D) -> (…, D)."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x
