"""The attention `restricted`."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from torch import Tensor

from paribus import (
    SOFTMAX_TRAITS,
    AtMost,
    Attend,
    Attention,
    Context,
    Cost,
    Divides,
    Example,
    Heads,
    Load,
    Range,
    ScoreOptions,
    Shape,
    State,
    Traits,
    empty_cache,
    softmax_cost,
    visibility_of,
)


@final
class Restricted(Attention):
    """Each row sees the rows fewer than `window` away: "Attention Is All You Need" (Vaswani et al. 2017), section 4.

    Causal, row i sees rows i - window + 1 up to i; else also as many behind it. A window of 1 is the row itself.
    """

    traits: ClassVar[Traits] = {**SOFTMAX_TRAITS, "cross": False}

    def __init__(
        self,
        shape: Shape,
        *,
        window: Annotated[
            int,
            "how far a row sees: |i - j| < window",
            Range(1),
            AtMost("length", "that equals full attention"),
            Example(8),
        ],
        kv_heads: Annotated[
            int | None, "key/value heads; null: one for each query head", Range(1), Divides("heads")
        ] = None,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=kv_heads or shape.heads, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape, window), scores)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.heads.kv_heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.sight, load)
