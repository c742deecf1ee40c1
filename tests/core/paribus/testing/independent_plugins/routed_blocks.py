"""Feed-forward whose blocks of hidden units are routed (`routed-blocks`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Cost, FeedForward, Load, Range, Role, Shape, hookimpl


@final
class RoutedBlocks(FeedForward):
    """Routed blocks of hidden units, some of them shared by all tokens (Dai et al. 2024).

    "DeepSeekMoE", computed densely: all blocks are computed, and those that a token did not choose are multiplied by 0,
    so the CPU waits for no value. A token chooses the `top` blocks with the largest probabilities, a softmax over all
    routed blocks, and multiplies each by its probability; shared blocks are multiplied by 1. The balance loss is that
    of "Switch Transformers" (Fedus et al. 2021). Padding counts in it. (B, T, D) -> (B, T, D), and a scalar.
    """

    roles: ClassVar[Mapping[str, Role]] = {
        "router.weight": "weight",
        "inner.weight": "inner",
        "outer.weight": "residual",
    }

    def __init__(
        self,
        shape: Shape,
        *,
        blocks: Annotated[int, "routed blocks", Range(1)] = 8,
        top: Annotated[int, "routed blocks of each token", Range(1)] = 2,
        shared: Annotated[int, "blocks that all tokens share", Range(0)] = 1,
        expand: Annotated[float, "width of a block, in widths of the stream", Range(above=0)] = 1.0,
        balance: Annotated[float, "weight of the balance loss; 0: none", Range(0)] = 0.01,
    ) -> None:
        super().__init__()
        if top > blocks:
            raise ValueError(f"`top` must be at most `blocks` ({blocks}), got {top}")
        self.width, self.blocks, self.top, self.shared, self.balance = shape.width, blocks, top, shared, balance
        self.inner_width = (blocks + shared) * max(1, round(expand * shape.width))
        self.router = nn.Linear(shape.width, blocks, bias=False)
        self.inner = nn.Linear(shape.width, self.inner_width)
        self.outer = nn.Linear(self.inner_width, shape.width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        scores = self.router(x)  # (B, T, E)
        probabilities = scores.to(torch.promote_types(scores.dtype, torch.float32)).softmax(-1)
        chosen = torch.zeros_like(probabilities).scatter(-1, probabilities.topk(self.top, dim=-1).indices, 1.0)
        gates = functional.pad(probabilities * chosen, (self.shared, 0), value=1.0)  # shared blocks come first
        hidden = functional.silu(self.inner(x)).unflatten(-1, (self.shared + self.blocks, -1))
        y = self.outer((hidden * gates.to(hidden.dtype).unsqueeze(-1)).flatten(-2))
        return y, self.balance * self.imbalance(probabilities, chosen) if self.balance else None

    def imbalance(self, probabilities: Tensor, chosen: Tensor) -> Tensor:
        """Return E times the sum over blocks of the share of choices and the mean probability; 1 if all are equal."""
        tokens = max(1, probabilities[..., 0].numel())
        shares = chosen.flatten(0, -2).sum(0) / (tokens * self.top)
        means = probabilities.flatten(0, -2).sum(0) / tokens
        return self.blocks * (shares * means).sum()

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.queries * self.width * (self.blocks + 2 * self.inner_width))


@hookimpl
def feedforward() -> Mapping[str, type[FeedForward]]:
    return {"routed-blocks": RoutedBlocks}
