"""Multi-head latent attention (`mla`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Load,
    Range,
    RootMeanSquare,
    ScoreOptions,
    Shape,
    State,
    visibility_of,
)
from paribus_attention.latent_heads import LatentHeads


@final
class MultiHeadLatent(Attention):
    """Multi-head latent attention (DeepSeek-AI 2024).

    "DeepSeek-V2". The keys and values of all heads are projected from one narrow latent a token, and only latents are
    cached. Rotary positions apply to separate channels: each query head has `rotary` of them beside its `head_width`,
    and all heads share those of the key. Latents are normalised by their root mean square; scores are divided by the
    root of both widths together. A single decoding step scores the latents directly and computes no keys.
    """

    traits: ClassVar[AttentionTraits] = {**SOFTMAX_TRAITS, "raw_memory": False, "separate_inputs": False}

    def __init__(
        self,
        shape: Shape,
        *,
        kv_rank: Annotated[int | None, "width of the latents; null: four times the head width", Range(1)] = None,
        q_rank: Annotated[
            int | None,
            "width of the latent that queries are projected from; null: queries are projected directly",
            Range(1),
        ] = None,
        rotary: Annotated[
            int | None, "rotary channels of a head, an even number; null: half of the head width", Range(2)
        ] = None,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        rotary_width = rotary or max(2, shape.head_width // 4 * 2)
        if rotary_width % 2:
            raise ValueError(
                f"`rotary` must be even, got {rotary_width}; valid: {rotary_width - 1}, {rotary_width + 1}"
            )
        for name, value in (("kernel", scores.kernel), ("value_embedding", scores.value_embedding or None)):
            if value is not None:
                raise ValueError(f"expected scores.{name} to be off: mla stores latents, not keys and values")
        self.shape = shape
        self.heads = LatentHeads(shape, kv_rank or 4 * shape.head_width, q_rank, rotary_width, bias=scores.bias)
        # Keys are normalised after they are projected from latents, so the norms are here and not in `Attend`.
        self.attend = Attend(shape, visibility_of(shape), replace(scores, qk_norm=False), rotary=rotary_width)
        self.norms = nn.ModuleDict()
        if scores.qk_norm:
            for side in "qk":
                self.norms[side] = RootMeanSquare(shape.head_width)
                self.norms[f"turned_{side}"] = RootMeanSquare(rotary_width)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q, rotary_q = self.heads.queries(x)
        rotary_q = self.attend.rotate(self.normalise("turned_q", rotary_q), ctx, "query")
        latents, rotary_k = self.cached_latents(x, ctx)
        bias = self.attend.forget_bias(x, ctx)
        if x.shape[1] == 1 and latents.shape[1] > 1 and self.absorbs_projections:
            q = torch.cat([self.heads.absorb_key_projection(q), rotary_q], dim=-1)  # (B, H, 1, C + R)
            k = torch.cat([latents.unsqueeze(1), rotary_k], dim=-1)  # (B, 1, S, C + R): one head for all
            read = self.attend.weigh_values(q, k, latents.unsqueeze(1), self.heads, ctx, bias=bias)
            mixed = self.heads.expand_values(read)
        else:
            q = torch.cat([self.normalise("q", q), rotary_q], dim=-1)  # (B, H, T, K + R)
            k = self.normalise("k", self.heads.keys(latents))
            k = torch.cat([k, rotary_k.expand(-1, k.shape[1], -1, -1)], dim=-1)
            v = self.attend.mix_with_first_layer(self.heads.values(latents), ctx, of="expanded values")
            mixed = self.attend.weigh_values(q, k, v, self.heads, ctx, bias=bias)
            mixed = self.attend.exclude_own_values(mixed, v, ctx)
        return self.heads.merge(self.attend.apply_gate(mixed, x))

    @property
    def absorbs_projections(self) -> bool:
        """Whether decoding may score latents directly: nothing reads or changes keys and values."""
        changed = len(self.norms) or self.attend.own_share is not None or self.attend.exclusive
        return not (changed or self.attend.reads_content)

    def normalise(self, side: str, x: Tensor) -> Tensor:
        normalised: Tensor = self.norms[side](x) if len(self.norms) else x
        return normalised

    def cached_latents(self, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return latents (B, S, C) and rotary keys (B, 1, S, R) of these tokens and all before: x is (B, T, D)."""
        state = ctx.state
        if ctx.memory is not None and state:
            return state["latents"], state["rotary_keys"]
        latents, rotary = self.heads.latents(self.attend.source(x, ctx))
        rotary = self.attend.rotate(self.normalise("turned_k", rotary), ctx, "key")
        if state is None:
            return latents, rotary
        if ctx.memory is not None:
            state.update(latents=latents, rotary_keys=rotary)
            return latents, rotary
        end = ctx.past + latents.shape[1]
        state["latents"][:, ctx.past : end] = latents
        state["rotary_keys"][:, :, ctx.past : end] = rotary
        return state["latents"][:, :end], state["rotary_keys"][:, :, :end]

    def start(self, batch: int, length: int, like: Tensor) -> State:
        if self.shape.memory_width is not None:
            return {}
        latent_width, rotary_width = self.heads.kv_rank, self.heads.rotary_width
        return {
            "latents": like.new_zeros(batch, length, latent_width),
            "rotary_keys": like.new_zeros(batch, 1, length, rotary_width),
        }

    def cost(self, load: Load) -> Cost:
        crossing = self.shape.memory_width is not None
        keys, fresh = (load.memory, load.memory) if crossing else (load.keys, min(load.queries, load.keys))
        heads, width, rank, rotary_width = (
            self.shape.heads,
            self.shape.head_width,
            self.heads.kv_rank,
            self.heads.rotary_width,
        )
        if load.queries == 1 and keys > 1 and self.absorbs_projections:
            expansion, query_width, value_width = 4 * rank * heads * width, rank + rotary_width, rank
        else:
            expansion, query_width, value_width = 4 * keys * rank * heads * width, width + rotary_width, width
        scoring = 2 * load.queries * keys * heads * (query_width + value_width)
        return self.heads.cost(load.queries, fresh) + Cost(expansion + scoring, keys * (rank + rotary_width))
