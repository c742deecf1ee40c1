"""Attention from projected heads to a kernel: rotation, cache, scores, weights.

`attention_weights` computes the weights as in the papers: the reference for every kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus.parts.chunked_loss import at_least_float32
from paribus.parts.context import (
    AttentionPlan,
    AttentionSublayer,
    Context,
    LayerScoring,
    Pair,
    PositionHooks,
    ScoreFunctions,
    State,
)
from paribus.parts.depthwise_convolution import ShortConvolutions
from paribus.parts.forget_gates import ForgetGates
from paribus.parts.heads import ContentProjection, Projections, RootMeanSquare, ScoreOptions, repeat_heads
from paribus.parts.shape import Cost, Load, Role, Shape
from paribus.parts.visibility import Visibility, visibility_mask


class DensePlan(NamedTuple):
    """Visibility and position bias for all queries and keys."""

    seen: Tensor | None  # (B|1, 1, T, S) bool
    bias: Tensor | None  # (B|1, H, T, S)


def require_attention_weights(attentions: Sequence[AttentionSublayer]) -> None:
    """Raise a ValueError if no attention has attention weights; others beside it return none."""
    if any(attention.traits.get("weights", False) for attention in attentions):
        return
    kinds = ", ".join(dict.fromkeys(type(attention).__name__ for attention in attentions))
    raise ValueError(f"expected an attention with the trait `weights`, got {kinds or 'none'}")


def dense_plan(plan: AttentionPlan, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor) -> DensePlan:
    """Return the dense form of a plan, made once per forward pass."""
    position_bias = None
    if bias is not None:
        pair = Pair(None, None, plan.q.positions, plan.k.positions, plan.scale, heads, dtype=like.dtype)
        position_bias = bias(pair).to(like.dtype)
    by_row = plan.k.documents is None and not plan.request.has_order
    return DensePlan(visibility_mask(plan.request.visibility, plan.q, plan.k, window_by_index=by_row), position_bias)


def all_pairs(q: Tensor, k: Tensor, plan: AttentionPlan, content: LayerScoring, visible: Tensor | None) -> Pair:
    """Return all queries and keys as a pair, the input of a position's bias or mix."""
    return Pair(
        q,
        repeat_heads(k, q.shape[1]),
        plan.q.positions,
        plan.k.positions,
        plan.scale,
        q.shape[1],
        content.project,
        q.dtype,
        content.position_part,
        plan.q.segments,
        plan.k.segments,
        visible,
    )


def attention_weights(q: Tensor, k: Tensor, plan: AttentionPlan, content: LayerScoring | None) -> Tensor:
    """Return softmax(cap(q k^T * scale + bias)) over the visible keys; a query without visible keys has weights 0."""
    k = repeat_heads(k, q.shape[1])
    scoring = (content.functions if content is not None else None) or ScoreFunctions()
    scores = scoring.compare(q, k, plan.scale)  # (B, H, T, S)
    dense: DensePlan = plan.kernel_data
    if dense.bias is not None:
        scores = scores + dense.bias
    if content is not None and content.bias is not None:
        scores = scores + content.bias(all_pairs(q, k, plan, content, dense.seen))
    if plan.soft_cap is not None:
        scores = plan.soft_cap * torch.tanh(scores / plan.soft_cap)
    if scoring.map_scores is not None:
        scores = scoring.map_scores(scores)
    weights = _normalize_visible(scores, dense.seen, content.sinks if content is not None else None, scoring.normalize)
    return weights if scoring.map_weights is None else scoring.map_weights(weights)


def _normalize_visible(
    scores: Tensor, seen: Tensor | None, sinks: Tensor | None, normalize: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return the weights of visible keys, without the share of a sink; those of hidden keys are 0, with gradient 0."""
    keys = scores.shape[-1]
    if seen is None:
        visible = torch.ones(1, 1, 1, keys, dtype=torch.bool, device=scores.device)
    else:
        visible = seen | ~seen.any(-1, keepdim=True)  # no function has to handle a query without visible keys
        # Finite, not -inf: a function may subtract scores, or sum them.
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    if sinks is not None:
        sink = sinks.view(-1, 1, 1).expand(*scores.shape[:-1], 1)  # (H,) -> (B, H, T, 1)
        scores, visible = torch.cat([scores, sink], dim=-1), functional.pad(visible, (0, 1), value=True)
    weights = normalize(scores, visible)
    if weights.shape != scores.shape:
        raise ValueError(
            f"expected weights of shape {tuple(scores.shape)} from `normalize`, got {tuple(weights.shape)}"
        )
    weights = weights if sinks is None else weights[..., :keys]
    return weights if seen is None else weights.masked_fill(~seen, 0.0)


@final
class Attend(nn.Module):
    """Attention over the heads of a caller. The plan of the stack chooses the kernel; a variant never does.

    The heads are an argument of each call, not an attribute: a module that is registered twice has two paths. `scored`:
    each call passes `ScoreFunctions`, which replace the score or the softmax. `rotary`: number of columns that the
    position rotates, if not all; a head then has these columns after its own, and a position whose bias reads content
    receives only its own columns.
    """

    roles: ClassVar[Mapping[str, Role]] = {
        "sinks": "bias",
        "own_share": "bias",
        "table_share": "bias",
        "gate.weight": "weight",
    }

    def __init__(
        self,
        shape: Shape,
        visibility: Visibility,
        scores: ScoreOptions,
        *,
        scored: bool = False,
        rotary: int | None = None,
        kv_heads: int | None = None,
    ) -> None:
        """Build the step after projections. `kv_heads` are those of its heads, if there are fewer than query heads."""
        super().__init__()
        self.visibility = visibility
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
        self.exclusive = scores.exclusive
        if shape.memory_width is not None:
            _refuse_in_cross_attention(scores)
        self.forget = ForgetGates(shape) if scores.forget else None
        if scores.gate is not None and shape.raw_memory:
            raise ValueError("expected scores.gate to be null: a raw memory has no output projection to gate")
        gates = {"headwise": shape.heads, "elementwise": shape.heads * shape.head_width}
        self.gate = nn.Linear(shape.width, gates[scores.gate], bias=False) if scores.gate is not None else None
        values = (kv_heads or shape.heads) * shape.head_width
        self.convolutions: ShortConvolutions | None = None
        if scores.kernel is not None:
            widths = {"q": shape.heads * shape.head_width, "k": values, "v": values}
            self.convolutions = ShortConvolutions(widths, scores.kernel, causal=shape.causal)
        self.value_table = nn.Embedding(shape.vocabulary, values) if scores.value_embedding else None
        self.table_share = nn.Parameter(torch.empty(())) if scores.value_embedding else None
        self.plan = 0
        self._part: tuple[nn.Module, ...] = ()
        self._position: tuple[PositionHooks, ...] = ()  # a tuple, so that the position is no child
        # True if the position rotates queries and keys; reads them; reads weights
        self._rotates = self._reads = self._mixes = False

    def bind(self, position: PositionHooks, plan: int, part: nn.Module | None = None) -> None:
        """Set the position that this attention reads, the layer's part of it, and the number of its plan."""
        self._position = (position,)
        self._part = () if part is None else (part,)
        self._rotates = "rotate" in position.traits["hooks"]
        self._reads = position.traits["bias"] == "content"
        self._mixes = position.uses_mix()
        self.plan = plan

    @property
    def plan_key(self) -> tuple[object, ...]:
        """Everything that a plan depends on; attentions with equal keys share a plan."""
        sinks = self.sinks is not None
        return (
            self.visibility,
            self.head_width,
            self.rotary,
            self.scaled,
            self.soft_cap,
            sinks,
            self.has_score_functions,
            self.forget is not None,
        )

    @property
    def reads_content(self) -> bool:
        """True if the position reads queries and keys, or weights."""
        return self._reads or self._mixes

    @property
    def position(self) -> PositionHooks:
        """Position that the heads read, or one without effect."""
        return self._position[0]

    @property
    def scale(self) -> float:
        """Factor of the dot products: 1 / sqrt(head width), or 1 if `scaled` is off."""
        return 1.0 / math.sqrt(self.head_width * self.position.score_terms()) if self.scaled else 1.0

    def forward(self, heads: Projections, x: Tensor, ctx: Context, scoring: ScoreFunctions | None = None) -> Tensor:
        """Return the output of the heads: (B, T, D) -> (B, H, T, K)."""
        k, v = self.keys_and_values(heads, x, ctx)
        q, bias = self.queries(heads, x, ctx), self.forget_bias(x, ctx)
        mixed = self.weigh_values(q, k, v, heads, ctx, scoring, bias)
        return self.apply_gate(self.exclude_own_values(mixed, v, ctx), x)

    def queries(self, heads: Projections, x: Tensor, ctx: Context) -> Tensor:
        """Return queries, normalized if `qk_norm` is set, and rotated: (B, T, D) -> (B, H, T, K)."""
        q = self._add_neighbours("q", heads.queries(x), ctx)
        return self.rotate(self.q_norm(q) if self.normed else q, ctx, "query")

    def rotate(self, x: Tensor, ctx: Context, side: Literal["query", "key"]) -> Tensor:
        """Return queries or keys rotated by the position, if it rotates: (B, H, T, R) -> (B, H, T, R)."""
        if not self._rotates:
            return x
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
        bias: Tensor | None = None,
    ) -> Tensor:
        """Return weighted means of the values: (B, H, T, K), (B, G, S, K), (B, G, S, V) -> (B, H, T, V).

        `bias` is that of `forget_bias`.
        """
        plan = ctx.plans[self.plan]
        content = self.layer_scoring(heads, scoring, bias)
        if ctx.captured is not None:
            ctx.captured["weights"] = attention_weights(q, k, plan, content)
        if ctx.captured_heads is not None:
            ctx.captured_heads.update(q=q, k=k, v=v)
        return plan.kernel(q, k, v, plan, content, self.dropout if self.training else 0.0)

    def forget_bias(self, x: Tensor, ctx: Context) -> Tensor | None:
        """Return the bias of the forget gates, or None if `forget` is not set: (B, T, D) -> (B, H, T, S)."""
        return None if self.forget is None else self.forget(x, ctx).to(x.dtype)

    def exclude_own_values(self, mixed: Tensor, v: Tensor, ctx: Context) -> Tensor:
        """Return outputs less their part along the value of their own position, if `exclusive` is set: (B, H, T, V),
        (B, G, S, V) -> (B, H, T, V).

        A query that is no key has no value of its own, and keeps its output. Of the first output of a causal stack,
        nothing is left.
        """
        if not self.exclusive:
            return mixed
        own = v[:, :, ctx.past : ctx.past + mixed.shape[2]]
        direction = functional.normalize(at_least_float32(repeat_heads(own, mixed.shape[1])), dim=-1)
        direction = functional.pad(direction, (0, 0, 0, mixed.shape[2] - own.shape[2]))
        wide = at_least_float32(mixed)
        return (wide - (wide * direction).sum(-1, keepdim=True) * direction).to(mixed.dtype)

    def apply_gate(self, mixed: Tensor, x: Tensor) -> Tensor:
        """Return outputs times the gates of the layer's input, if `gate` is set: (B, H, T, V), (B, T, D) ->
        (B, H, T, V). Fewer and wider heads have several gates each.
        """
        if self.gate is None:
            return mixed
        gates: Tensor = self.gate(x).sigmoid().unflatten(-1, (mixed.shape[1], -1)).transpose(1, 2)  # (B, H, T, 1|V)
        if 1 < gates.shape[-1] < mixed.shape[-1]:
            gates = gates.repeat_interleave(mixed.shape[-1] // gates.shape[-1], -1)
        return mixed * gates

    def cost(self, load: Load) -> Cost:
        """Return the cost of the gates and of short convolutions, which `cost` of an attention leaves out."""
        cost = Cost() if self.gate is None else Cost(2 * load.queries * self.gate.weight.numel())
        cost = cost if self.forget is None else cost + self.forget.cost(load)
        return cost if self.convolutions is None else cost + self.convolutions.cost(load)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        """Return an empty decoding state of the options, beside that of the attention."""
        state: State = {} if self.forget is None else self.forget.start(batch, length, like)
        return state if self.convolutions is None else {**state, **self.convolutions.start(batch, like)}

    def layer_scoring(
        self, heads: ContentProjection, scoring: ScoreFunctions | None, forget: Tensor | None = None
    ) -> LayerScoring | None:
        """Return the inputs of the kernel that belong to this layer, or None if there are none."""
        if scoring is not None and not self.has_score_functions:  # the kernel was chosen without them
            raise ValueError("expected `Attend(…, scored=True)` for an attention with score functions")
        if not (self.reads_content or self.has_score_functions or self.sinks is not None or forget is not None):
            return None
        position = self.position
        bias = (self._bias if self.content_width < self.head_width else position.bias) if self._reads else None
        return LayerScoring(
            bias if forget is None else self._add_position(forget, bias),
            heads.project,
            position.mix if self._mixes else None,
            self.sinks,
            scoring,
            self._part[0] if self._part else None,
        )

    def _add_position(self, forget: Tensor, bias: Callable[[Pair], Tensor] | None) -> Callable[[Pair], Tensor]:
        """Return the bias of the forget gates together with that of the position."""
        if bias is None and self.position.traits["bias"] == "positions":
            bias = self.position.bias  # no plan has it, as content decides as well
        return lambda pair: forget if bias is None else forget + bias(pair).to(forget.dtype)

    def _bias(self, pair: Pair) -> Tensor:
        """Return the bias of the position from the heads' own columns."""
        assert pair.q is not None, "content is a matter of queries and keys"
        assert pair.k is not None, "content is a matter of queries and keys"
        own = slice(self.content_width)
        return self.position.bias(pair._replace(q=pair.q[..., own], k=pair.k[..., own]))

    def keys_and_values(self, heads: Projections, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return keys and values of all tokens so far, or of the memory: (B, T, D) -> (B, G, S, K) each."""
        if ctx.memory is not None and ctx.state:  # the memory is constant while decoding
            return ctx.state["k"], ctx.state["v"]
        source = self.source(x if ctx.key_input is None else ctx.key_input, ctx)
        value_source = source if ctx.value_input is None else self.source(ctx.value_input, ctx)
        k = self._add_neighbours("k", heads.keys(source), ctx)
        k = self.rotate(self.k_norm(k) if self.normed else k, ctx, "key")
        v = self._mix_with_table(self._add_neighbours("v", heads.values(value_source), ctx), ctx)
        v = self.mix_with_first_layer(v, ctx)
        if ctx.state is None:
            return k, v
        if ctx.memory is not None:
            ctx.state.update(k=k, v=v)
            return k, v
        return append_to_cache(ctx.state, k, v, ctx.past)

    def source(self, x: Tensor, ctx: Context) -> Tensor:
        """Return the hidden states that become keys now, or the memory: (B, T, D) -> (B, S, D)."""
        return leading_positions(x, ctx.key_layout.positions.shape[-1] - ctx.past) if ctx.memory is None else ctx.memory

    def _add_neighbours(self, name: str, h: Tensor, ctx: Context) -> Tensor:
        """Return projections with their short convolution added, if `kernel` is set: (B, G, T, K) -> (B, G, T, K)."""
        if self.convolutions is None:
            return h
        channels = h.transpose(1, 2).flatten(2)
        self._check_width(channels.shape[-1], self.convolutions.widths[name])
        summed: Tensor = self.convolutions(name, channels, ctx)
        split: Tensor = summed.unflatten(-1, (h.shape[1], h.shape[3]))
        return split.transpose(1, 2)

    def _mix_with_table(self, v: Tensor, ctx: Context) -> Tensor:
        """Return values mixed with the table's for each token, if there is one: half and half at the start."""
        if self.value_table is None:
            return v
        assert self.table_share is not None
        if ctx.tokens is None:
            raise ValueError("expected token ids for scores.value_embedding, got inputs without ids")
        self._check_width(v.shape[1] * v.shape[3], self.value_table.embedding_dim)
        table: Tensor = self.value_table(ctx.tokens).to(v.dtype).unflatten(-1, (v.shape[1], v.shape[3]))
        return (0.5 + self.table_share) * v + (0.5 - self.table_share) * table.transpose(1, 2)

    def _check_width(self, given: int, expected: int) -> None:
        if given != expected:
            raise ValueError(
                f"heads have {given} channels and `Attend` was built for {expected}; pass the number of key/value "
                "heads: Attend(…, kv_heads=…)"
            )

    def mix_with_first_layer(self, v: Tensor, ctx: Context, of: str = "values") -> Tensor:
        """Return values mixed with those of the first layer with as many heads: half and half at the start."""
        if self.own_share is None:
            return v
        assert ctx.carry is not None, "expected a dictionary for values of early layers"
        first = ctx.carry.setdefault(f"{of} of {v.shape[1]} heads", v)
        return (0.5 + self.own_share) * v + (0.5 - self.own_share) * first


def _refuse_in_cross_attention(scores: ScoreOptions) -> None:
    """Reject options of the tokens themselves, which a query over a memory is not."""
    off = {"exclusive": "false", "forget": "false", "kernel": "null", "value_embedding": "false"}
    for name, value in off.items():
        if getattr(scores, name):
            raise ValueError(
                f"expected scores.{name} to be {value} in cross-attention: the memory has no token of the query "
                f"(parts.decoder.cross.attention.scores.{name})"
            )


def leading_positions(x: Tensor, length: int) -> Tensor:
    """Return the positions that are keys: all, unless extra queries follow them."""
    return x if x.shape[1] == length else x[:, :length]  # a slice of everything would be copied in the backward pass


def component_cost(component: Any, load: Load) -> Cost:
    """Return the cost of a component of a layer, with the options of its `Attend` that every attention has."""
    attends = [module for module in component.modules() if isinstance(module, Attend)]
    return sum((attend.cost(load) for attend in attends), component.cost(load))


def append_to_cache(state: State, k: Tensor, v: Tensor, past: int) -> tuple[Tensor, Tensor]:
    """Write keys and values after the `past` positions of the state, and return all of them."""
    end = past + k.shape[2]
    for name, fresh in (("k", k), ("v", v)):
        state[name][:, :, past:end] = fresh
    return state["k"][:, :, :end], state["v"][:, :, :end]
