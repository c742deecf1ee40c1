# feedforward saved-square | mistake: the hand-written backward of relu(x)^2 lacks the factor 2 | property: gradients equal finite differences
"""Squared ReLU that stores one tensor for the backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Cost, FeedForward, Load, Range, Role, Shape, hookimpl


class _SquaredReLU(torch.autograd.Function):
    """relu(x)^2; stores relu(x) only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return gradient * positive


@final
class SavedSquare(FeedForward):
    """outer(relu(inner(x))^2), with little memory: "Primer" (So et al. 2021)."""

    roles: ClassVar[Mapping[str, Role]] = {"inner.weight": "inner", "outer.weight": "residual"}

    def __init__(
        self, shape: Shape, *, expand: Annotated[float, "inner width, in widths of the stream", Range(above=0)] = 4.0
    ) -> None:
        super().__init__()
        self.width, self.inner_width = shape.width, round(expand * shape.width)
        self.inner = nn.Linear(self.width, self.inner_width)
        self.outer = nn.Linear(self.inner_width, self.width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) -> (B, T, F) -> (B, T, D)."""
        return self.outer(_SquaredReLU.apply(self.inner(x))), None

    def cost(self, load: Load) -> Cost:
        return Cost(flops=4 * load.queries * self.width * self.inner_width)


@hookimpl
def feedforward() -> Mapping[str, type[FeedForward]]:
    return {"saved-square": SavedSquare}
