# attention standard-keys | mistake: keys are standardised with a mean and deviation over the whole time axis, padding and other documents included | property: padding (and packed documents) do not change the result
"""Attention with standardised keys, for encoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Heads,
    Load,
    Range,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    hookimpl,
    softmax_cost,
    visibility_of,
)


@final
class StandardKeys(Attention):
    """Each channel of the keys has mean 0 and deviation 1 over the sequence, so that no channel dominates the scores."""

    traits: ClassVar[AttentionTraits] = {
        **SOFTMAX_TRAITS,
        "causal": False,  # the statistics are those of the whole sequence
        "cross": False,
        "order": False,
        "extra_queries": False,
        "raw_memory": False,
        "decodes": False,
    }

    def __init__(
        self, shape: Shape, *, eps: Annotated[float, "added to the deviation of a channel", Range(above=0)] = 1e-3
    ) -> None:
        super().__init__()
        self.shape, self.eps = shape, eps
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
        self.attend = Attend(shape, visibility_of(shape), ScoreOptions())

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self, x, ctx))

    def queries(self, x: Tensor) -> Tensor:
        return self.heads.queries(x)

    def keys(self, x: Tensor) -> Tensor:
        """(B, S, D) -> (B, H, S, K)."""
        k = self.heads.keys(x)
        centred = k - k.mean(-2, keepdim=True)
        return centred / (centred.square().mean(-2, keepdim=True) + self.eps).sqrt()

    def values(self, x: Tensor) -> Tensor:
        return self.heads.values(x)

    def project(self, table: Tensor) -> tuple[Tensor, Tensor]:
        return self.heads.project(table)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load)


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"standard-keys": StandardKeys}
