"""Retention (`retention`)."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    RECURRENCE_TRAITS,
    Attention,
    AttentionTraits,
    ConstantTensor,
    Context,
    Cost,
    Heads,
    Load,
    MatrixRecurrence,
    Shape,
    State,
)


@final
class Retention(Attention):
    """Retention, linear attention with a fixed decay for each head, O(T) (Sun et al. 2023).

    "Retentive Network: A Successor to Transformer for Large Language Models". In head h, counted from 0,
    S_t = a_h S_{t-1} + k_t v_tᵀ and y_t = S_tᵀ q_t / √K with a_h = 1 - 2^(-5 - h). Queries and keys are rotated by
    their positions as in RoPE; outputs are normalised to a mean of 0 and a variance of 1 in each head, and multiplied
    by SiLU of a map of the input. Values are as wide as keys, where the paper doubles them. Decoding keeps K x K
    numbers a head at any length.
    """

    traits: ClassVar[AttentionTraits] = RECURRENCE_TRAITS

    def __init__(
        self,
        shape: Shape,
        *,
        rotary: Annotated[bool, "rotate queries and keys by their positions"] = True,
        gate: Annotated[bool, "multiply outputs by SiLU of a map of the input"] = True,
    ) -> None:
        super().__init__()
        if rotary and shape.head_width % 2:
            raise ValueError(f"`rotary` needs an even head width, got {shape.head_width}")
        self.shape, self.rotary = shape, rotary
        self.heads = Heads(shape, kv_heads=shape.heads, bias=False)
        self.recurrence = MatrixRecurrence(shape.heads, shape.head_width, shape.head_width)
        self.gate = nn.Linear(shape.width, shape.heads * shape.head_width, bias=False) if gate else None
        self.log_decays = ConstantTensor(
            [math.log1p(-(2.0 ** (-5 - head))) for head in range(shape.heads)], torch.float64
        )

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q, k, v = self.heads.queries(x), self.heads.keys(x) / math.sqrt(self.shape.head_width), self.heads.values(x)
        if self.rotary:
            q, k = (_rotated(side, ctx.layout.positions) for side in (q, k))
        log_decay = self.log_decays.like(x, torch.promote_types(x.dtype, torch.float32))
        log_decay = log_decay[None, :, None, None].expand(-1, -1, x.shape[1], -1)
        y = self.recurrence(q, k, v, ctx, log_decay=log_decay)
        y = functional.layer_norm(y, y.shape[-1:])
        if self.gate is not None:
            y = y * functional.silu(self.heads.split(self.gate(x), self.shape.heads))
        return self.heads.merge(y)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return self.recurrence.start(batch, like)

    def cost(self, load: Load) -> Cost:
        heads, width = self.shape.heads, self.shape.head_width
        maps = (4 if self.gate is None else 5) * 2 * load.queries * self.shape.width * heads * width
        return self.recurrence.cost(load) + Cost(maps)


def _rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate channels i and i + K/2 by the angle p * 10000^(-2i/K): (B, H, T, K), (B|1, T) -> (B, H, T, K)."""
    half = x.shape[-1] // 2
    wide = torch.promote_types(x.dtype, torch.float32)
    frequencies = 10_000.0 ** (-torch.arange(half, device=x.device, dtype=wide) / half)
    angles = positions[:, None, :, None].to(wide) * frequencies  # (B|1, 1, T, K/2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
