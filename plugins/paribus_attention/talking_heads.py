"""The attention `talking-heads`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    Context,
    Cost,
    Heads,
    Load,
    Role,
    ScoreFunctions,
    ScoreOptions,
    Shape,
    State,
    Traits,
    empty_cache,
    softmax_cost,
    visibility_of,
)


@final
class TalkingHeads(Attention):
    """Heads that mix their scores before the softmax and their weights behind it: "Talking-Heads Attention" (Shazeer et
    al. 2020).

    Head h scores with the sum over g of `before[h, g]` times what head g makes of query and key; what a position adds
    comes after, and is the head's own. Both maps start as the scheme starts any matrix: under `xavier` that is the
    variance-keeping start of the paper's own code. Its weights are those that values are weighed by, behind the second
    map: those of a row need not sum to 1.
    """

    traits: ClassVar[Traits] = {**SOFTMAX_TRAITS, "shares": False}
    roles: ClassVar[Mapping[str, Role]] = {"before": "weight", "after": "weight"}

    def __init__(self, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores, scored=True)
        self.before = nn.Parameter(torch.empty(shape.heads, shape.heads))
        self.after = nn.Parameter(torch.empty(shape.heads, shape.heads))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        scoring = ScoreFunctions(compare=self.compare, after=lambda weights: spoken(self.after, weights))
        return self.heads.merge(self.attend(self.heads, x, ctx, scoring))

    def compare(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """(B, H, T, K), (B, H, S, K) -> (B, H, T, S)."""
        return spoken(self.before, q @ k.transpose(-1, -2) * scale)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        keys = load.keys if self.shape.memory_width is None else load.memory
        talk = 2 * 2 * self.shape.heads**2 * load.queries * keys
        return softmax_cost(self.shape, self.shape.heads, self.attend.sight, load) + Cost(flops=talk)


def spoken(talk: Tensor, x: Tensor) -> Tensor:
    """(H, H), (B, H, T, S) -> (B, H, T, S): each head a sum over all of them."""
    return (talk @ x.flatten(-2)).view_as(x)  # (H, H) @ (B, H, T*S)
