# feedforward expert-choice | mistake: experts choose among all tokens of the batch, so a token's output depends on later tokens and on other sequences | property: feed-forward treats tokens separately (causality, batch independence)
"""Experts that choose their tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Cost, FeedForward, Load, Range, Role, Shape, hookimpl


@final
class ExpertChoice(FeedForward):
    """Each expert takes the tokens that score highest for it: "Expert Choice Routing" (Zhou et al. 2022)."""

    roles: ClassVar[Mapping[str, Role]] = {"router.weight": "weight"}

    def __init__(
        self,
        shape: Shape,
        *,
        experts: Annotated[int, "number of experts", Range(2)] = 4,
        capacity: Annotated[float, "experts per token, on average", Range(above=0)] = 2.0,
    ) -> None:
        super().__init__()
        if capacity > experts:
            raise ValueError(f"expected a capacity of at most {experts}, the number of experts, got {capacity}")
        self.width, self.inner_width, self.capacity = shape.width, 2 * shape.width, capacity
        self.router = nn.Linear(shape.width, experts, bias=False)
        self.inner = nn.ModuleList(nn.Linear(shape.width, self.inner_width) for _ in range(experts))
        self.outer = nn.ModuleList(nn.Linear(self.inner_width, shape.width) for _ in range(experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) -> (B, T, D)."""
        tokens = x.flatten(0, -2)  # (N, D)
        shares = self.router(tokens).softmax(-1)  # (N, E)
        gates, chosen = shares.topk(self.places(len(tokens)), dim=0)  # (C, E)
        y = torch.zeros_like(tokens)
        for expert, (inner, outer) in enumerate(zip(self.inner, self.outer, strict=True)):
            output = outer(functional.gelu(inner(tokens[chosen[:, expert]]))) * gates[:, expert, None]
            y = y.index_add(0, chosen[:, expert], output.to(y.dtype))
        return y.view_as(x), None

    def places(self, tokens: int) -> int:
        return min(tokens, math.ceil(tokens * self.capacity / len(self.inner)))

    def cost(self, load: Load) -> Cost:
        experts = len(self.inner)
        router = 2 * load.queries * self.width * experts
        return Cost(flops=router + experts * self.places(load.queries) * 4 * self.width * self.inner_width)


@hookimpl
def feedforward() -> Mapping[str, type[FeedForward]]:
    return {"expert-choice": ExpertChoice}
