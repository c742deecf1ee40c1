"""The one road from projected heads to a kernel: rotate, remember, score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from paribus.parts.attention_weights import attention_weights
from paribus.parts.context import Context, LayerScoring, Pair, ScoreFunctions, State
from paribus.parts.heads import ContentProjection, Projections, RootMeanSquare, ScoreOptions
from paribus.parts.shape import Role, Shape
from paribus.parts.visibility import Visibility

if TYPE_CHECKING:
    from paribus.slots.position import Position


@final
class Attend(nn.Module):
    """Softmax attention over given heads; which kernel computes it is the stack's plan, never code of a variant.

    The heads are an argument of each call, not an attribute: a module that is registered twice has two paths.
    `scored`: each call passes `ScoreFunctions`. `rotary`: number of columns that the position rotates, if not all; a
    head then has these columns after its own, and a position whose bias reads content receives only its own columns.
    """

    roles: ClassVar[Mapping[str, Role]] = {"sinks": "bias", "own_share": "bias"}

    def __init__(
        self, shape: Shape, sight: Visibility, scores: ScoreOptions, *, scored: bool = False, rotary: int | None = None
    ) -> None:
        super().__init__()
        self.visibility = sight
        self.has_score_functions = scored
        self.rotary = rotary or shape.head_width
        self.content_width = shape.head_width
        self.soft_cap = scores.soft_cap
        self.scaled = scores.scaled
        self.dropout = shape.dropout
        self.head_width = shape.head_width + (rotary or 0)
        self.heads = shape.heads
        self.normed = scores.qk_norm
        if self.normed:
            self.q_norm, self.k_norm = (RootMeanSquare(shape.head_width) for _ in "qk")
        self.sinks = nn.Parameter(torch.empty(shape.heads)) if scores.sinks else None
        self.own_share = nn.Parameter(torch.empty(())) if scores.value_residual else None
        self.plan = 0
        self._part: tuple[nn.Module, ...] = ()
        self._position: tuple[Position, ...] = ()  # a tuple: the position is the stack's or the layer's child, not ours
        self._reads = self._mixes = False  # what of queries, keys and weights the position asks to see

    def bind(self, position: Position, plan: int, part: nn.Module | None = None) -> None:
        """The stack says which position this attention reads, its layer's part of it, and which plan is its."""
        self._position = (position,)
        self._part = () if part is None else (part,)
        self._reads = position.traits["bias"] == "content"
        self._mixes = position.uses_mix()
        self.plan = plan

    @property
    def plan_key(self) -> tuple[object, ...]:
        """All that a plan depends on: attentions that ask for the same share one."""
        sinks = self.sinks is not None
        return (
            self.visibility,
            self.head_width,
            self.rotary,
            self.scaled,
            self.soft_cap,
            sinks,
            self.has_score_functions,
        )

    @property
    def reads_content(self) -> bool:
        """Whether its position is shown queries and keys, or weights."""
        return self._reads or self._mixes

    @property
    def position(self) -> Position:
        return self._position[0]

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.head_width * self.position.score_terms()) if self.scaled else 1.0

    def forward(self, heads: Projections, x: Tensor, ctx: Context, scoring: ScoreFunctions | None = None) -> Tensor:
        """(B, T, D) -> (B, H, T, K)."""
        k, v = self.keys_and_values(heads, x, ctx)
        return self.weigh_values(self.queries(heads, x, ctx), k, v, heads, ctx, scoring)

    def queries(self, heads: Projections, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, H, T, K): normalised where asked, and turned."""
        q = heads.queries(x)
        return self.rotate(self.q_norm(q) if self.normed else q, ctx, "query")

    def rotate(self, x: Tensor, ctx: Context, side: Literal["query", "key"]) -> Tensor:
        """(B, H, T, R) -> (B, H, T, R): what the position rotates, where it rotates."""
        plan = ctx.plans[self.plan]
        return self.position.rotate(x, plan.q_tables if side == "query" else plan.k_tables, side)

    def weigh_values(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: ContentProjection,
        ctx: Context,
        scoring: ScoreFunctions | None = None,
    ) -> Tensor:
        """(B, H, T, K), (B, G, S, K), (B, G, S, V) -> (B, H, T, V): values as the queries weigh their keys."""
        plan = ctx.plans[self.plan]
        content = self.layer_scoring(heads, scoring)
        if ctx.captured is not None:
            ctx.captured["weights"] = attention_weights(q, k, plan, content)
        if ctx.captured_heads is not None:
            ctx.captured_heads.update(q=q, k=k, v=v)
        return plan.kernel(q, k, v, plan, content, self.dropout if self.training else 0.0)

    def layer_scoring(self, heads: ContentProjection, scoring: ScoreFunctions | None) -> LayerScoring | None:
        """What a kernel must be told of besides queries and keys, if anything."""
        if not (self.reads_content or self.has_score_functions or self.sinks is not None):
            return None
        position = self.position
        return LayerScoring(
            (self._bias if self.content_width < self.head_width else position.bias) if self._reads else None,
            heads.project,
            position.mix if self._mixes else None,
            self.sinks,
            scoring,
            self._part[0] if self._part else None,
        )

    def _bias(self, pair: Pair) -> Tensor:
        """What the position makes of the heads' own columns."""
        assert pair.q is not None, "content is a matter of queries and keys"
        assert pair.k is not None, "content is a matter of queries and keys"
        own = slice(self.content_width)
        return self.position.bias(pair._replace(q=pair.q[..., own], k=pair.k[..., own]))

    def keys_and_values(self, heads: Projections, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """(B, T, D) -> (B, G, S, K) each: those of these rows and of all before, or of the memory."""
        if ctx.memory is not None and ctx.state:  # the memory of a decoder never changes: projected once
            return ctx.state["k"], ctx.state["v"]
        source = self.source(x, ctx)
        k = heads.keys(source)
        k = self.rotate(self.k_norm(k) if self.normed else k, ctx, "key")
        v = self.mix_with_first_layer(heads.values(source), ctx)
        if ctx.state is None:
            return k, v
        if ctx.memory is not None:
            ctx.state.update(k=k, v=v)
            return k, v
        return append_to_cache(ctx.state, k, v, ctx.past)

    def source(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, S, D): the rows that become keys now, which are those of the memory if there is one."""
        return leading_positions(x, ctx.key_layout.positions.shape[-1] - ctx.past) if ctx.memory is None else ctx.memory

    def mix_with_first_layer(self, v: Tensor, ctx: Context, of: str = "values") -> Tensor:
        """Values mixed with those of the first layer that has as many heads: half and half, until learned otherwise."""
        if self.own_share is None:
            return v
        assert ctx.carry is not None, "a stack gives its layers something to leave values in"
        first = ctx.carry.setdefault(f"{of} of {v.shape[1]} heads", v)
        return (0.5 + self.own_share) * v + (0.5 - self.own_share) * first


def leading_positions(x: Tensor, rows: int) -> Tensor:
    """The first rows, which are the keys: all, but where a second stream asks behind them."""
    return x if x.shape[1] == rows else x[:, :rows]  # a slice of all would still be copied in the backward pass


def append_to_cache(state: State, k: Tensor, v: Tensor, past: int) -> tuple[Tensor, Tensor]:
    """Writes new keys and values behind the `past` that the state holds, and returns all of them."""
    end = past + k.shape[2]
    for name, fresh in (("k", k), ("v", v)):
        state[name][:, :, past:end] = fresh
    return state["k"][:, :, :end], state["v"][:, :, :end]
