"""Feed-forward with a norm and dropout of its hidden units (`norm-former`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn
from torch.nn import functional

from paribus import Cost, FeedForward, Load, Range, Role, RootMeanSquare, Shape, hookimpl


@final
class NormFormer(FeedForward):
    """Feed-forward with a norm of its hidden units, outer(dropout(norm(gelu(inner(x))))) (Shleifer et al. 2021).

    "NormFormer", with a root mean square norm. The dropout of hidden units is that of the model, as in tensor2tensor's
    `relu_dropout`. (B, T, D) -> (B, T, F) -> (B, T, D).
    """

    roles: ClassVar[Mapping[str, Role]] = {"inner.weight": "inner", "outer.weight": "residual"}

    def __init__(
        self,
        shape: Shape,
        *,
        expand: Annotated[float, "inner width, in widths of the stream", Range(above=0)] = 4.0,
        bias: Annotated[bool, "add a bias to the two projections"] = True,
    ) -> None:
        super().__init__()
        self.width, self.inner_width = shape.width, max(1, round(expand * shape.width))
        self.dropout = shape.dropout
        self.inner = nn.Linear(self.width, self.inner_width, bias=bias)
        self.norm = RootMeanSquare(self.inner_width)
        self.outer = nn.Linear(self.inner_width, self.width, bias=bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        hidden = self.norm(functional.gelu(self.inner(x)))
        return self.outer(functional.dropout(hidden, self.dropout, self.training)), None

    def cost(self, load: Load) -> Cost:
        return Cost(flops=4 * load.queries * self.width * self.inner_width)


@hookimpl
def feedforward() -> Mapping[str, type[FeedForward]]:
    return {"norm-former": NormFormer}
