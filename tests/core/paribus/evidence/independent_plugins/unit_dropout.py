# feedforward unit-dropout | mistake: dropped units are not compensated by 1 / (1 - p), so that outputs are larger in evaluation than in training | property: dropout keeps the mean: training with dropout agrees with evaluation in expectation
"""Feed-forward with dropout of its hidden units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Cost, FeedForward, Load, Range, Role, Shape, hookimpl


@final
class UnitDropout(FeedForward):
    """outer(dropout(gelu(inner(x)))), where a unit is dropped for all tokens of a sequence at once."""

    roles: ClassVar[Mapping[str, Role]] = {"inner.weight": "inner", "outer.weight": "residual"}

    def __init__(
        self, shape: Shape, *, expand: Annotated[float, "inner width, in widths of the stream", Range(above=0)] = 4.0
    ) -> None:
        super().__init__()
        self.width, self.inner_width, self.dropout = shape.width, round(expand * shape.width), shape.dropout
        self.inner = nn.Linear(self.width, self.inner_width)
        self.outer = nn.Linear(self.inner_width, self.width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) -> (B, T, F) -> (B, T, D)."""
        hidden = functional.gelu(self.inner(x))
        if self.training and self.dropout:
            hidden = hidden * (torch.rand_like(hidden[..., :1, :]) >= self.dropout)
        return self.outer(hidden), None

    def cost(self, load: Load) -> Cost:
        return Cost(flops=4 * load.queries * self.width * self.inner_width)


@hookimpl
def feedforward() -> Mapping[str, type[FeedForward]]:
    return {"unit-dropout": UnitDropout}
