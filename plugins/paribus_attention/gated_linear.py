"""Gated linear attention (`gated-linear`)."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Final, Literal, final

import torch
from torch import Tensor
from torch.nn import functional

from paribus import (
    RECURRENCE_TRAITS,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Heads,
    Load,
    MatrixRecurrence,
    Range,
    Shape,
    State,
)
from paribus_attention.recurrence_gates import GatedNorm, low_rank, weights_of

TEMPERATURE: Final = 16.0


@final
class GatedLinear(Attention):
    """Gated linear attention, GLA, whose state decays by a gate of the token, O(T) (Yang et al. 2023).

    "Gated Linear Attention Transformers with Hardware-Efficient Training". In each head
    S_t = diag(a_t) S_{t-1} + k_t v_tᵀ and y_t = S_tᵀ q_t / √K, with a_t = sigmoid(W x_t + b)^(1/16) for each channel of
    a key, by a map of low rank. Outputs are divided by their root mean square and multiplied by SiLU of a map of the
    input. With one decay for each head, it is a simple GLA. Keys are as wide as values, where the paper halves them.
    Decoding keeps K x K numbers a head at any length.
    """

    traits: ClassVar[AttentionTraits] = RECURRENCE_TRAITS

    def __init__(
        self,
        shape: Shape,
        *,
        decay: Annotated[
            Literal["channel", "head"], "a decay for each channel of a key, or one for each head (simple GLA)"
        ] = "channel",
        rank: Annotated[int | None, "channels between the two maps of the decay; null: one map", Range(1)] = 16,
    ) -> None:
        super().__init__()
        self.shape, channels = shape, shape.head_width if decay == "channel" else 1
        self.heads = Heads(shape, kv_heads=shape.heads, bias=False)
        self.decay = low_rank(shape.width, rank, shape.heads * channels)
        self.recurrence = MatrixRecurrence(
            shape.heads, shape.head_width, shape.head_width, channel_decay=decay == "channel"
        )
        self.norm = GatedNorm(shape, shape.head_width)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q, k, v = self.heads.queries(x), self.heads.keys(x) / math.sqrt(self.shape.head_width), self.heads.values(x)
        gate = self.decay(x).to(torch.promote_types(x.dtype, torch.float32))
        log_decay = functional.logsigmoid(gate).unflatten(-1, (self.shape.heads, -1)).transpose(1, 2) / TEMPERATURE
        return self.heads.merge(self.norm(self.recurrence(q, k, v, ctx, log_decay=log_decay), x))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return self.recurrence.start(batch, like)

    def cost(self, load: Load) -> Cost:
        return self.recurrence.cost(load) + Cost(2 * load.queries * weights_of(self))
