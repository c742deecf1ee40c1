# feedforward soft-experts | mistake: the auxiliary router loss is summed over tokens instead of averaged, so it grows with the batch and the length | property: the auxiliary loss does not depend on the size of the batch (wrong scaling in training)
"""Dense mixture of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn
from torch.nn import functional

from paribus import Cost, FeedForward, Load, Range, Role, Shape, hookimpl


@final
class SoftExperts(FeedForward):
    """A weighted mean of all experts, with the z-loss of "ST-MoE" (Zoph et al. 2022)."""

    roles: ClassVar[Mapping[str, Role]] = {
        "router.weight": "weight",
        "inner.weight": "inner",
        "outer.weight": "residual",
    }

    def __init__(
        self,
        shape: Shape,
        *,
        experts: Annotated[int, "number of experts", Range(2)] = 4,
        z: Annotated[float, "weight of the z-loss of the router", Range(above=0)] = 1e-4,
    ) -> None:
        super().__init__()
        self.width, self.experts, self.z = shape.width, experts, z
        self.router = nn.Linear(shape.width, experts, bias=False)
        self.inner = nn.Linear(shape.width, experts * shape.width)  # each expert is as wide as the stream
        self.outer = nn.Linear(experts * shape.width, shape.width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) -> (B, T, D), and a scalar."""
        scores = self.router(x)  # (B, T, E)
        hidden = functional.gelu(self.inner(x)).unflatten(-1, (self.experts, -1))  # (B, T, E, D)
        weighted = hidden * scores.softmax(-1).to(hidden.dtype).unsqueeze(-1)
        return self.outer(weighted.flatten(-2)), self.z * scores.logsumexp(-1).square().sum()

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.queries * self.width * self.experts * (1 + 2 * self.width))


@hookimpl
def feedforward() -> Mapping[str, type[FeedForward]]:
    return {"soft-experts": SoftExperts}
