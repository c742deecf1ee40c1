"""Stick-breaking attention (`stick-breaking`)."""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional

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
    running_sums,
    softmax_cost,
    visibility_of,
)


@final
class StickBreaking(Attention):
    """Stick-breaking attention: each key takes a share of what the keys after it left (Tan et al. 2024).

    "Scaling Stick-Breaking Attention: An Efficient Implementation and In-depth Study". The weight of the key at j for
    the query at i is sigmoid(score_ij) times the product of 1 - sigmoid(score_il) for j < l < i, so that of two keys
    with equal scores the nearer one has more weight; it needs no position. A token does not see itself, and the weights
    of a query sum to 1 at most. There are no sinks (`scores.sinks`), as every query may attend to nothing.
    """

    traits: ClassVar[AttentionTraits] = {
        **SOFTMAX_TRAITS,
        "bidirectional": False,
        "cross": False,
        "order": False,
        "extra_queries": False,
        "raw_memory": False,
        "normalized": False,
    }

    def __init__(
        self,
        shape: Shape,
        *,
        remainder: Annotated[
            bool, "give what is left of a weight of 1 to the token's own value, if `scores.exclusive` is false"
        ] = False,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        if scores.sinks:
            raise ValueError("expected scores.sinks to be false: a query may attend to nothing without a sink")
        if remainder and scores.exclusive:
            raise ValueError("expected remainder to be false with scores.exclusive, which subtracts the own value")
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores, scored=True)
        self.functions = ScoreFunctions(normalize=partial(break_stick, remainder=remainder))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx, self.functions))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load)


def break_stick(scores: Tensor, visible: Tensor, *, remainder: bool = False) -> Tensor:
    """Return the weights of the last T of S tokens: (…, T, S) -> (…, T, S); hidden keys take nothing."""
    queries, keys = scores.shape[-2:]
    places = torch.arange(keys, device=scores.device)
    own = places == places[keys - queries :].unsqueeze(-1)  # (T, S)
    is_read = visible & ~own
    z = at_least_float32(scores).masked_fill(~is_read, 0.0)
    left = functional.logsigmoid(-z).masked_fill(~is_read, 0.0)  # logarithm of the part that each key leaves
    after = running_sums(left.flip(-1)).flip(-1)  # by the key and those after it
    weights = (functional.logsigmoid(z) + after - left).exp().masked_fill(~is_read, 0.0)
    if remainder:
        weights = weights + after[..., :1].exp() * own
    return weights.to(scores.dtype)
