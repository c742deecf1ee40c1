"""ReLU attention (`relu`)."""

from __future__ import annotations

from typing import ClassVar, final

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
    ScoreFunctions,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    softmax_cost,
    visibility_of,
)


@final
class RectifiedLinearUnit(Attention):
    """ReLU attention, relu(score) / n instead of a softmax (Wortsman et al. 2023).

    "Replacing softmax with ReLU in Vision Transformers". The keys of a query do not compete for weight: keys with
    scores below 0 have weight 0, and the weights of a query have any sum. Here n is the number of keys that the query
    sees, so that neither padding nor later tokens change a weight; in the paper, n is the length of the sequence. There
    are no sinks (`scores.sinks`), as no weight is shared.
    """

    traits: ClassVar[AttentionTraits] = {**SOFTMAX_TRAITS, "normalized": False}

    def __init__(self, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
        super().__init__()
        if scores.sinks:
            raise ValueError("expected scores.sinks to be false: the weights of a query share nothing with a sink")
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores, scored=True)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx, ScoreFunctions(normalize=relu_weights)))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load)


def relu_weights(scores: Tensor, visible: Tensor) -> Tensor:
    """Return relu(score) / n for n visible keys: (B, H, T, S) -> (B, H, T, S)."""
    keys = visible.sum(-1, keepdim=True, dtype=scores.dtype)  # (B|1, 1, T|1, 1)
    return scores.relu() / keys
