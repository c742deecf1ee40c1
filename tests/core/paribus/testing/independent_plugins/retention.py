"""Retention, with a decoding state of its own (`retention`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    PADDING,
    Attention,
    AttentionTraits,
    ConstantTensor,
    Context,
    Cost,
    Heads,
    Load,
    Range,
    Role,
    RootMeanSquare,
    Shape,
    State,
    Visibility,
    hookimpl,
)


@final
class Retention(Attention):
    """Retention, dot products that decay with distance and have no softmax (Sun et al. 2023).

    "Retentive Network", without its rotation. Head h, counted from 0, weighs the token n tokens back by q·k / √K times
    gamma^n, with gamma = 1 - 2^-(fastest + h). The output of each head is divided by its root mean square and gated by
    silu(G x). Padding does not count as distance. Decoding keeps K x K numbers a head at any length.
    """

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
        "causal": True,
        "bidirectional": False,
        "documents": True,
        "residual": True,
        "decodes": True,
    }
    roles: ClassVar[Mapping[str, Role]] = {"gate.weight": "weight"}

    def __init__(
        self,
        shape: Shape,
        *,
        fastest: Annotated[float, "exponent of the head that forgets fastest (RetNet: 5)", Range(above=0)] = 5.0,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=False)
        self.gate = nn.Linear(shape.width, shape.heads * shape.head_width, bias=False)
        self.norm = RootMeanSquare(shape.head_width)
        decays = [math.log1p(-(2.0 ** -(fastest + head))) for head in range(shape.heads)]
        self.log_decays = ConstantTensor(decays, torch.float64)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q, k, v = self.heads.queries(x), self.heads.keys(x) / math.sqrt(self.shape.head_width), self.heads.values(x)
        documents = ctx.key_layout.documents
        if documents is None:
            documents = torch.zeros_like(ctx.key_layout.positions)
        ages = functional.pad((documents >= 0).cumsum(-1), (1, 0))  # (B|1, S + 1): content among the first tokens
        own = ages[:, ctx.past + 1 :]  # (B|1, T)
        seen = ctx.mask(Visibility(causal=True))
        assert seen is not None, "a causal mask hides something"
        apart = (own.unsqueeze(-1) - own.unsqueeze(-2)).clamp(min=0)  # (B|1, T, T)
        weights = q @ k.transpose(-1, -2) * self.decay(apart, x) * seen[..., ctx.past :]
        mixed = weights.to(v.dtype) @ v
        if ctx.state is not None:
            mixed = mixed + self.recall(q, k, v, ages, documents, ctx).to(v.dtype)
        gate = functional.silu(self.gate(x)).unflatten(-1, (self.shape.heads, -1)).transpose(1, 2)  # (B, H, T, K)
        return self.heads.merge(self.norm(mixed) * gate)

    def decay(self, apart: Tensor, like: Tensor) -> Tensor:
        """Return gamma to the power of distances: (B|1, T, S) -> (B|1, H, T, S)."""
        logs = self.log_decays.like(apart, torch.promote_types(like.dtype, torch.float32))
        return (logs[:, None, None] * apart.unsqueeze(1)).exp()

    def recall(self, q: Tensor, k: Tensor, v: Tensor, ages: Tensor, documents: Tensor, ctx: Context) -> Tensor:
        """Read what the state remembers of each query's document, and write the new tokens: (B, H, T, K)."""
        assert ctx.state is not None, "called only while decoding"
        memory, own, last = ctx.state["memory"], ages[:, ctx.past + 1 :], ages[:, -1:]
        first = ages[:, ctx.past : ctx.past + 1]
        before, after = last_document(documents[:, : ctx.past]), last_document(documents)  # (B|1, 1)
        fresh = documents[:, ctx.past :]  # (B|1, T)
        reads = self.decay((own - first).unsqueeze(-1), q) * (fresh == before)[:, None, :, None]  # (B|1, H, T, 1)
        writes = self.decay((last - own).unsqueeze(-1), q) * (fresh == after)[:, None, :, None]
        keeps = self.decay((last - first).unsqueeze(-1), q) * (before == after)[:, None, :, None]  # (B|1, H, 1, 1)
        ctx.state["memory"] = memory * keeps + (k * writes).transpose(-1, -2) @ v.to(memory.dtype)
        return (q * reads) @ memory

    def start(self, batch: int, length: int, like: Tensor) -> State:
        width = self.shape.head_width
        wide = torch.promote_types(like.dtype, torch.float32)  # a sum over many tokens
        return {"memory": like.new_zeros(batch, self.shape.heads, width, width, dtype=wide)}

    def cost(self, load: Load) -> Cost:
        inner = self.shape.heads * self.shape.head_width
        projections = 5 * 2 * load.queries * self.shape.width * inner
        remembered = 2 * 2 * load.queries * inner * self.shape.head_width if load.keys > load.queries else 0
        state = inner * self.shape.head_width
        return Cost(flops=projections + 4 * load.queries**2 * inner + remembered, state=state)


def last_document(documents: Tensor) -> Tensor:
    """Return the document of the last token that is not padding, PADDING if there is none: (B|1, S) -> (B|1, 1)."""
    padded = functional.pad(documents, (1, 0), value=PADDING)
    index = torch.arange(padded.shape[-1], device=padded.device)
    return padded.gather(-1, torch.where(padded >= 0, index, 0).amax(-1, keepdim=True))


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"retention": Retention}
