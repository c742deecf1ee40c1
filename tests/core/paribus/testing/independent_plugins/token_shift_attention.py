"""Attention whose keys mix neighbouring tokens (`token-shift-attention`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    PADDING,
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Heads,
    Load,
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
class TokenShiftAttention(Attention):
    """Attention with keys of a token and the one before, W((1 - s) x_t + s x_(t-1)), s learned (Peng et al. 2023).

    The token shift of "RWKV". Each channel has its own s, which starts at 1/2. The token before is the last one of the
    same document that is not padding; before the first token there are zeros. Decoding keeps the last token as well.
    """

    traits: ClassVar[AttentionTraits] = {
        **SOFTMAX_TRAITS,
        "cross": False,
        "order": False,
        "extra_queries": False,
        "raw_memory": False,
    }
    roles: ClassVar[Mapping[str, Role]] = {"share": "bias"}

    def __init__(
        self,
        shape: Shape,
        *,
        values: Annotated[bool, "shift values like keys"] = True,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape, self.values = shape, values
        self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores)
        self.share = nn.Parameter(torch.zeros(shape.width))  # the difference to 1/2

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        shifted = torch.lerp(x, self.before(x, ctx), (0.5 + self.share).to(x.dtype))
        return self.heads.merge(self.attend(Shifted(self.heads, shifted, self.values), x, ctx))

    def before(self, x: Tensor, ctx: Context) -> Tensor:
        """Return the token before each, and update the last one in the state: (B, T, D) -> (B, T, D)."""
        documents = ctx.key_layout.documents
        if documents is None:
            documents = torch.zeros_like(ctx.key_layout.positions)
        past = functional.pad(documents[:, : ctx.past], (1, 0), value=PADDING)
        previous = past.gather(1, last_content(past)[:, -1:])  # (B|1, 1)
        joined = torch.cat([previous, documents[:, ctx.past :]], dim=1)  # (B|1, T + 1)
        first = x.new_zeros(x.shape[0], 1, x.shape[2]) if ctx.state is None else ctx.state["last"].to(x.dtype)
        inputs, index = torch.cat([first, x], dim=1), last_content(joined)
        if ctx.state is not None:
            ctx.state["last"] = take(inputs, index[:, -1:]).to(ctx.state["last"].dtype)
        same = joined.gather(1, index[:, :-1]) == joined[:, 1:]
        return take(inputs, index[:, :-1]) * same.unsqueeze(-1)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        last = like.new_zeros(batch, 1, self.shape.width)
        return {**empty_cache(self.shape, self.shape.heads, batch, length, like), "last": last}

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.shape.heads, self.attend.visibility, load) + Cost(state=self.shape.width)


class Shifted(NamedTuple):
    """Projections whose keys, and values, read shifted tokens."""

    heads: Heads
    shifted: Tensor  # (B, T, D)
    both: bool  # values as well

    def queries(self, x: Tensor) -> Tensor:
        return self.heads.queries(x)

    def keys(self, x: Tensor) -> Tensor:
        return self.heads.keys(self.shifted)

    def values(self, x: Tensor) -> Tensor:
        return self.heads.values(self.shifted if self.both else x)

    def project(self, table: Tensor) -> tuple[Tensor, Tensor]:
        return self.heads.project(table)


def last_content(documents: Tensor) -> Tensor:
    """Return the index of the last token up to each that is not padding, 0 if there is none: (B|1, T) -> (B|1, T)."""
    index = torch.arange(documents.shape[1], device=documents.device)
    return torch.where(documents >= 0, index, 0).cummax(-1).values


def take(x: Tensor, index: Tensor) -> Tensor:
    """(B, S, D), (B|1, T) -> (B, T, D)."""
    return x.gather(1, index.unsqueeze(-1).expand(x.shape[0], -1, x.shape[2]))


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"token-shift-attention": TokenShiftAttention}
