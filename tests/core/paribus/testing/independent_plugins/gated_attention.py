"""Attention whose heads pass a gate before the output projection (`gated-attention`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

from torch import Tensor, nn

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    AttentionTraits,
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
    hookimpl,
    softmax_cost,
    visibility_of,
)


@final
class GatedAttention(Attention):
    """Gated attention, sigmoid(G x) times the output of each head (Qiu et al. 2025).

    "Gated Attention for Large Language Models". The gates of a token are computed from its own hidden state, the one
    that its query is projected from; a head can so be silent without a key to rest on.
    """

    traits: ClassVar[AttentionTraits] = {**SOFTMAX_TRAITS, "raw_memory": False}
    roles: ClassVar[Mapping[str, Role]] = {"gate.weight": "weight"}

    def __init__(
        self,
        shape: Shape,
        *,
        gates: Annotated[Literal["channel", "head"], "a gate for each channel of a head, or one for each head"] = (
            "channel"
        ),
        kv_heads: Annotated[
            int | None, "key/value heads; null: one for each query head", Range(1), Divides("heads")
        ] = None,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=kv_heads or shape.heads, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores)
        self.gates = shape.heads * (shape.head_width if gates == "channel" else 1)
        self.gate = nn.Linear(shape.width, self.gates, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        mixed = self.attend(self.heads, x, ctx)  # (B, H, T, K)
        gate = self.gate(x).sigmoid().unflatten(-1, (self.shape.heads, -1)).transpose(1, 2)  # (B, H, T, K|1)
        return self.heads.merge(mixed * gate)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.heads.kv_heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        gating = Cost(flops=2 * load.queries * self.shape.width * self.gates)
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.visibility, load) + gating


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"gated-attention": GatedAttention}
