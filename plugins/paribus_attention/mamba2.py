"""Mamba-2 (`mamba2`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    RECURRENCE_TRAITS,
    AtMost,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    DepthwiseConvolution,
    Load,
    MatrixRecurrence,
    Range,
    Role,
    RootMeanSquare,
    Shape,
    State,
)
from paribus_attention.recurrence_gates import SoftplusDecay, weights_of


@final
class Mamba2(Attention):
    """Mamba-2, a selective state space model with one decay for each head, O(T) (Dao & Gu 2024).

    "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space Duality". Maps of
    the input give a gate z and x for each head, and B and C for all heads; a short convolution and SiLU follow for x, B
    and C. In each head S_t = exp(-A dt_t) S_{t-1} + dt_t B_t x_tᵀ and y_t = S_tᵀ C_t + D x_t, with
    dt_t = softplus(W x_t + b). y SiLU(z) is divided by its root mean square over all heads, and mapped to the output.
    The initial A and dt of heads are in equal ratios, not random. Heads have `dims.head_width` channels, and there are
    `expand` * `dims.width` / `dims.head_width` of them. Decoding keeps `state` x K numbers a head at any length.
    """

    traits: ClassVar[AttentionTraits] = RECURRENCE_TRAITS
    roles: ClassVar[Mapping[str, Role]] = {"skip": "gain", "outer.weight": "residual"}

    def __init__(
        self,
        shape: Shape,
        *,
        expand: Annotated[int, "width of all heads, in widths of the stream", Range(1)] = 2,
        state: Annotated[
            int, "rows of the state of a head, the width of B and C (released models: 128)", Range(1)
        ] = 64,
        kernel: Annotated[
            int,
            "tokens in the window of the convolution",
            Range(2),
            AtMost("length", "a sequence has no more tokens"),
        ] = 4,
    ) -> None:
        super().__init__()
        self.inner, self.state, self.head_width = expand * shape.width, state, shape.head_width
        if self.inner % shape.head_width:
            raise ValueError(f"the head width must divide {self.inner} channels, got {shape.head_width}")
        self.heads = self.inner // shape.head_width
        self.gate = nn.Linear(shape.width, self.inner, bias=False)
        self.reads = nn.Linear(shape.width, self.inner + 2 * state, bias=False)
        self.convolution = DepthwiseConvolution(self.inner + 2 * state, kernel, causal=True, bias=True)
        self.recurrence = MatrixRecurrence(self.heads, state, shape.head_width, groups=1)
        self.decay = SoftplusDecay(shape.width, self.heads)
        self.skip = nn.Parameter(torch.empty(self.heads))
        self.norm = RootMeanSquare(self.inner)
        self.outer = nn.Linear(self.inner, shape.width, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        channels = self.reads(x)
        channels = functional.silu(channels + self.convolution(channels, ctx))
        v, k, q = channels.split([self.inner, self.state, self.state], dim=-1)
        v = v.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, T, K)
        log_decay, step = self.decay(x)
        y = self.recurrence(q.unsqueeze(1), k.unsqueeze(1), v, ctx, log_decay=log_decay, step_size=step)
        y = (y + self.skip[:, None, None].to(y.dtype) * v).transpose(1, 2).flatten(-2)
        output: Tensor = self.outer(self.norm(y * functional.silu(self.gate(x))))
        return output

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {**self.recurrence.start(batch, like), **self.convolution.start(batch, like)}

    def cost(self, load: Load) -> Cost:
        maps = Cost(2 * load.queries * weights_of(self))
        return self.convolution.cost(load) + self.recurrence.cost(load) + maps
