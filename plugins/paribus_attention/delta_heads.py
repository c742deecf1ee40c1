"""Projections and recurrence of delta rules, with a short convolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Context, Cost, DepthwiseConvolution, Load, MatrixRecurrence, Role, Shape, State


@final
class DeltaHeads(nn.Module):
    """Projections to queries, keys and values, a causal convolution of each channel, SiLU, and unit queries and keys.

    The convolution adds to its input: the weight of the token itself starts at 1 plus its random draw. The modules
    `q`, `k`, `v` and `o` have the paths of `Heads`, and so the same initial weights. With `writes`, a token has as many
    keys and values. `recurrence` is the delta rule of these heads.
    """

    roles: ClassVar[Mapping[str, Role]] = {
        "q.weight": "query",
        "k.weight": "key",
        "v.weight": "value",
        "o.weight": "residual",
    }

    def __init__(
        self, shape: Shape, *, kernel: int | None, value_width: int, writes: int = 1, channel_decay: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.key_width, self.value_width, self.writes = shape.heads, shape.head_width, value_width, writes
        self.recurrence = MatrixRecurrence(
            shape.heads, shape.head_width, value_width, delta=True, writes=writes, channel_decay=channel_decay
        )
        self.q = nn.Linear(shape.width, shape.heads * shape.head_width, bias=False)
        self.k = nn.Linear(shape.width, writes * shape.heads * shape.head_width, bias=False)
        self.v = nn.Linear(shape.width, writes * shape.heads * value_width, bias=False)
        self.o = nn.Linear(shape.heads * value_width, shape.width, bias=False)
        self.sizes = [part.out_features for part in (self.q, self.k, self.v)]
        self.convolution = (
            None if kernel is None else DepthwiseConvolution(sum(self.sizes), kernel, causal=True, bias=False)
        )

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, D) -> queries (B, H, T, K), keys (B, H, T * W, K) and values (B, H, T * W, V)."""
        projected = [self.q(x), self.k(x), self.v(x)]
        if self.convolution is not None:
            channels = torch.cat(projected, dim=-1)
            projected = [*(channels + self.convolution(channels, ctx)).split(self.sizes, dim=-1)]
        q, k, v = (functional.silu(part) for part in projected)
        return (
            functional.normalize(self._split(q, 1), dim=-1),
            functional.normalize(self._split(k, self.writes), dim=-1),
            self._split(v, self.writes),
        )

    def _split(self, x: Tensor, writes: int) -> Tensor:
        """Split columns into heads, and writes into tokens: (B, T, W*H*K) -> (B, H, T*W, K)."""
        split: Tensor = x.unflatten(-1, (writes, self.heads, -1))
        return split.flatten(1, 2).transpose(1, 2)

    def merge(self, y: Tensor) -> Tensor:
        """Return the output projection of all heads: (B, H, T, V) -> (B, T, D)."""
        merged: Tensor = self.o(y.transpose(1, 2).flatten(-2))
        return merged

    def start(self, batch: int, like: Tensor) -> State:
        """Return an empty decoding state, for the convolution and the recurrence."""
        state = self.recurrence.start(batch, like)
        return state if self.convolution is None else {**state, **self.convolution.start(batch, like)}

    def cost(self, load: Load) -> Cost:
        """Return the cost of projections, convolution and recurrence."""
        weights = sum(part.weight.numel() for part in (self.q, self.k, self.v, self.o))
        cost = Cost(2 * load.queries * weights) + self.recurrence.cost(load)
        return cost if self.convolution is None else cost + self.convolution.cost(load)
