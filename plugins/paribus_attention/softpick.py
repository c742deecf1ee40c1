"""Softpick attention (`softpick`)."""

from __future__ import annotations

from typing import ClassVar, Final, final

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
    at_least_float32,
    empty_cache,
    softmax_cost,
    visibility_of,
)

EPSILON: Final = 1e-6


@final
class Softpick(Attention):
    """Softpick attention, relu(e^score - 1) / sum |e^score - 1| instead of a softmax (Zuhri et al. 2025).

    "Softpick: No Attention Sink, No Massive Activations with Rectified Softmax". Keys with scores of 0 or less have
    weight 0, but negative scores count in the sum, so that they receive gradients; the weights of a query sum to 1 at
    most, and to 0 if no score is positive. A sink is one more score.
    """

    traits: ClassVar[AttentionTraits] = {**SOFTMAX_TRAITS, "normalized": False}

    def __init__(self, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores, scored=True)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx, ScoreFunctions(normalize=softpick)))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load)


def softpick(scores: Tensor, visible: Tensor) -> Tensor:
    """Return the rectified softmax of each row: (…, S) -> (…, S)."""
    z = at_least_float32(scores)
    largest = z.amax(-1, keepdim=True).detach().clamp(min=0)  # of rows without a positive score, all weights are 0
    powers = ((z - largest).exp() - (-largest).exp()).masked_fill(~visible, 0.0)  # a factor e^-largest, no overflow
    return (powers.relu() / (powers.abs().sum(-1, keepdim=True) + EPSILON)).to(scores.dtype)
