# feedforward fused-gate | mistake: the second half of the fused projection is cut one column too early, so one column is used twice and the last never | property: every hidden unit has an effect and gets a gradient
"""Gated linear unit with one fused projection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn
from torch.nn import functional

from paribus import Cost, FeedForward, Load, Range, Role, Shape, hookimpl


@final
class FusedGate(FeedForward):
    """SwiGLU whose gate and values are one product: "GLU Variants Improve Transformer" (Shazeer 2020)."""

    roles: ClassVar[Mapping[str, Role]] = {"inner.weight": "inner", "outer.weight": "residual"}

    def __init__(
        self, shape: Shape, *, expand: Annotated[float, "inner width, in widths of the stream", Range(above=0)] = 2.5
    ) -> None:
        super().__init__()
        self.width, self.inner_width = shape.width, max(1, round(expand * shape.width))
        self.inner = nn.Linear(self.width, 2 * self.inner_width, bias=False)
        self.outer = nn.Linear(self.inner_width, self.width, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) -> (B, T, 2F) -> (B, T, D)."""
        both, units = self.inner(x), self.inner_width
        gate, values = both[..., :units], both[..., units - 1 : -1]
        return self.outer(functional.silu(gate) * values), None

    def cost(self, load: Load) -> Cost:
        return Cost(flops=6 * load.queries * self.width * self.inner_width)


@hookimpl
def feedforward() -> Mapping[str, type[FeedForward]]:
    return {"fused-gate": FusedGate}
