"""Attention whose heads are gated by the token of the query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

from torch import Tensor, nn

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    Context,
    Cost,
    Divides,
    Heads,
    Load,
    Range,
    Role,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    softmax_cost,
    visibility_of,
)


@final
class GatedAttention(Attention):
    """Softmax attention with a sigmoid gate on the output of each head: "Gated Attention" (Qiu et al. 2025)."""

    traits = SOFTMAX_TRAITS
    roles: ClassVar[Mapping[str, Role]] = {"gate.bias": "bias"}

    def __init__(
        self,
        shape: Shape,
        *,
        kv_heads: Annotated[int, "key/value heads", Range(1), Divides("heads")] = 1,
        gate: Annotated[Literal["head", "element"], "one gate for a head, or for each of its elements"] = "head",
        floor: Annotated[float, "smallest value of a gate", Range(0, below=1)] = 0.1,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape, self.kv_heads, self.floor, self.kind = shape, kv_heads, floor, gate
        self.heads = Heads(shape, kv_heads=kv_heads, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores)
        self.columns = 1 if gate == "head" else shape.head_width
        self.gate = nn.Linear(shape.width, shape.heads * self.columns)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        mixed = self.attend(self.heads, x, ctx)  # (B, H, T, K)
        gate = self.gate(x).unflatten(-1, (self.shape.heads, self.columns)).transpose(1, 2)  # (B, H, T, 1|K)
        gate = self.floor + (1 - self.floor) * gate.sigmoid()
        return self.heads.merge(mixed * gate)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.kv_heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        gates = 2 * load.queries * self.shape.width * self.shape.heads * self.columns
        return softmax_cost(self.shape, self.kv_heads, self.attend.visibility, load) + Cost(flops=gates)
