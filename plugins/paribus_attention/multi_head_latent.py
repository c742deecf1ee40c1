"""The attention `mla`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    Context,
    Cost,
    Load,
    Range,
    RootMeanSquare,
    ScoreOptions,
    Shape,
    State,
    Traits,
    visibility_of,
)
from paribus_attention.latent_heads import LatentHeads


@final
class MultiHeadLatent(Attention):
    """Keys and values of all heads come from one narrow latent a row, which alone is remembered: "DeepSeek-V2"
    (DeepSeek-AI 2024).

    What a position turns is apart from it: behind its own `head_width`, each query head has `rotary` columns for that,
    and all heads share those of the key. Latents are divided by their root mean square, scores by the root of both
    widths together. One row alone asks the latents themselves, and no key is made of them.
    """

    traits: ClassVar[Traits] = {**SOFTMAX_TRAITS, "raw": False}

    def __init__(
        self,
        shape: Shape,
        *,
        kv_rank: Annotated[int | None, "width of the latents; null: four times that of a head", Range(1)] = None,
        q_rank: Annotated[
            int | None, "width of a latent that queries come from; null: straight from the rows", Range(1)
        ] = None,
        rotary: Annotated[
            int | None, "columns beside a head's own that positions turn, an even number; null: half as many", Range(2)
        ] = None,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        turned = rotary or max(2, shape.head_width // 4 * 2)
        if turned % 2:
            raise ValueError(
                f"columns are turned in pairs, but `rotary` is {turned}; valid: {turned - 1}, {turned + 1}"
            )
        self.shape = shape
        self.heads = LatentHeads(shape, kv_rank or 4 * shape.head_width, q_rank, turned, bias=scores.bias)
        # A key's own columns are normalised after they are made of a latent, so the norms stand here.
        self.attend = Attend(shape, visibility_of(shape), replace(scores, qk_norm=False), rotary=turned)
        self.norms = nn.ModuleDict()
        if scores.qk_norm:
            for side in "qk":
                self.norms[side] = RootMeanSquare(shape.head_width)
                self.norms[f"turned_{side}"] = RootMeanSquare(turned)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q, turned_q = self.heads.queries(x)
        turned_q = self.attend.turned(self.normed("turned_q", turned_q), ctx, "query")
        latents, turned_k = self.remembered(x, ctx)
        if x.shape[1] == 1 and latents.shape[1] > 1 and self.lowers:
            q = torch.cat([self.heads.lowered(q), turned_q], dim=-1)  # (B, H, 1, C + R)
            k = torch.cat([latents.unsqueeze(1), turned_k], dim=-1)  # (B, 1, S, C + R): one head for all
            mixed = self.heads.raised(self.attend.mixed(q, k, latents.unsqueeze(1), self.heads, ctx))
        else:
            q = torch.cat([self.normed("q", q), turned_q], dim=-1)  # (B, H, T, K + R)
            k = self.normed("k", self.heads.keys(latents))
            k = torch.cat([k, turned_k.expand(-1, k.shape[1], -1, -1)], dim=-1)
            v = self.attend.with_the_first(self.heads.values(latents), ctx, of="expanded values")
            mixed = self.attend.mixed(q, k, v, self.heads, ctx)
        return self.heads.merge(mixed)

    @property
    def lowers(self) -> bool:
        """Whether nothing is done to keys or values between latents and scores, so that queries may go down to them."""
        return not (len(self.norms) or self.attend.own_share is not None or self.attend.shows)

    def normed(self, side: str, x: Tensor) -> Tensor:
        made: Tensor = self.norms[side](x) if len(self.norms) else x
        return made

    def remembered(self, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """(B, T, D) -> (B, S, C) and (B, 1, S, R): latents and turned columns of these rows and all before."""
        state = ctx.state
        if ctx.memory is not None and state:
            return state["latents"], state["turned"]
        latents, turned = self.heads.latents(self.attend.source(x, ctx))
        turned = self.attend.turned(self.normed("turned_k", turned), ctx, "key")
        if state is None:
            return latents, turned
        if ctx.memory is not None:
            state.update(latents=latents, turned=turned)
            return latents, turned
        end = ctx.past + latents.shape[1]
        state["latents"][:, ctx.past : end] = latents
        state["turned"][:, :, ctx.past : end] = turned
        return state["latents"][:, :end], state["turned"][:, :, :end]

    def start(self, batch: int, length: int, like: Tensor) -> State:
        if self.shape.memory_width is not None:
            return {}
        latents, turned = self.heads.kv_rank, self.heads.columns
        return {"latents": like.new_zeros(batch, length, latents), "turned": like.new_zeros(batch, 1, length, turned)}

    def cost(self, load: Load) -> Cost:
        crossing = self.shape.memory_width is not None
        keys, fresh = (load.memory, load.memory) if crossing else (load.keys, min(load.queries, load.keys))
        heads, width, rank, turned = self.shape.heads, self.shape.head_width, self.heads.kv_rank, self.heads.columns
        if load.queries == 1 and keys > 1 and self.lowers:
            ways, asked, mixed = 4 * rank * heads * width, rank + turned, rank
        else:
            ways, asked, mixed = 4 * keys * rank * heads * width, width + turned, width
        scored = 2 * load.queries * keys * heads * (asked + mixed)
        return self.heads.cost(load.queries, fresh) + Cost(ways + scored, keys * (rank + turned))
