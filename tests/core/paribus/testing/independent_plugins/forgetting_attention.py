"""Softmax attention with forget gates (`forgetting-attention`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
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
    Role,
    ScoreFunctions,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    hookimpl,
    softmax_cost,
    visibility_of,
)


@final
class ForgettingAttention(Attention):
    """Forgetting attention, scores lowered by the gates between query and key (Lin et al. 2025).

    "Forgetting Transformer". Each head has a gate f = sigmoid(w·x + keep) for each token; the score of tokens i and j
    is lowered by the sum of -log f from the token after the earlier one up to the later one. In bidirectional stacks,
    keys ahead are forgotten like keys behind. Padding forgets nothing. Decoding also caches the sums.
    """

    traits: ClassVar[AttentionTraits] = {
        **SOFTMAX_TRAITS,
        "cross": False,
        "order": False,
        "extra_queries": False,
        "raw_memory": False,
    }
    roles: ClassVar[Mapping[str, Role]] = {"forget.weight": "weight"}

    def __init__(
        self,
        shape: Shape,
        *,
        keep: Annotated[float, "bias of all gates; larger values forget more slowly"] = 3.0,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape, self.keep = shape, keep
        self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores, scored=True)
        self.forget = nn.Linear(shape.width, shape.heads, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        sums = self.sums(x, ctx)
        lowered = -(sums[:, :, ctx.past :].unsqueeze(-1) - sums.unsqueeze(-2)).abs()  # (B, H, T, S)
        scoring = ScoreFunctions(map_scores=lambda scores: scores + lowered.to(scores.dtype))
        return self.heads.merge(self.attend(self.heads, x, ctx, scoring))

    def sums(self, x: Tensor, ctx: Context) -> Tensor:
        """Return the sums of log f up to each token, and update those in the state: (B, T, D) -> (B, H, S)."""
        logits = self.forget(x).to(torch.promote_types(x.dtype, torch.float32)) + self.keep
        logs = functional.logsigmoid(logits)  # (B, T, H)
        if ctx.layout.documents is not None:
            logs = logs * (ctx.layout.documents >= 0).unsqueeze(-1)
        sums = logs.cumsum(1).transpose(1, 2)
        if ctx.state is None:
            return sums
        stored, end = ctx.state["sums"], ctx.past + x.shape[1]
        if ctx.past:
            sums = sums + stored[:, :, ctx.past - 1 : ctx.past]
        stored[:, :, ctx.past : end] = sums
        return stored[:, :, :end]

    def start(self, batch: int, length: int, like: Tensor) -> State:
        wide = torch.promote_types(like.dtype, torch.float32)
        sums = like.new_zeros(batch, self.shape.heads, length, dtype=wide)
        return {**empty_cache(self.shape, self.shape.heads, batch, length, like), "sums": sums}

    def cost(self, load: Load) -> Cost:
        gates = Cost(2 * load.queries * self.shape.width * self.shape.heads, state=load.keys * self.shape.heads)
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load) + gates


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"forgetting-attention": ForgettingAttention}
