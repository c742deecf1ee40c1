"""The one road from projected heads to a kernel: rotate, remember, score."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

from torch import Tensor, nn

from paribus.parts.context import Content, Context, Plan, State
from paribus.parts.heads import Projections
from paribus.parts.scores import Scores
from paribus.parts.shape import Shape
from paribus.parts.sight import Sight
from paribus.parts.weights import attention_weights

if TYPE_CHECKING:
    from paribus.slots.position import Position


@final
class Attend(nn.Module):
    """Softmax attention over given heads; which kernel computes it is the stack's plan, never code of a variant.

    It takes the heads by call, not by reference: a module that is registered twice has two paths.
    """

    def __init__(self, shape: Shape, sight: Sight, scores: Scores) -> None:
        super().__init__()
        self.sight = sight
        self.soft_cap = scores.soft_cap
        self.scaled = scores.scaled
        self.dropout = shape.dropout
        self.head_width = shape.head_width
        self.heads = shape.heads
        self.plan = 0
        self._position: tuple[Position, ...] = ()  # a tuple: the position is the stack's or the layer's child, not ours
        self._reads = self._mixes = False  # what of queries, keys and weights the position asks to see

    def bind(self, position: Position, plan: int) -> None:
        """The stack says which position this attention reads, and which of its plans is this one's."""
        self._position = (position,)
        self._reads = position.traits["bias"] == "content"
        self._mixes = "mix" in position.traits["moments"]
        self.plan = plan

    @property
    def position(self) -> Position:
        return self._position[0]

    @property
    def scale(self) -> float:
        terms = self.position.traits.get("terms", 1)
        return 1.0 / math.sqrt(self.head_width * terms) if self.scaled else 1.0

    def forward(self, heads: Projections, x: Tensor, ctx: Context) -> Tensor:
        plan = ctx.plans[self.plan]
        q = self.position.rotate(heads.queries(x), plan.q_tables, "query")
        k, v = self.keys_and_values(heads, x, ctx, plan)
        content = self.content(heads) if self._reads or self._mixes else None
        if ctx.capture is not None:
            ctx.capture["weights"] = attention_weights(q, k, plan, content)
        return plan.kernel(q, k, v, plan, content, self.dropout if self.training else 0.0)

    def content(self, heads: Projections) -> Content:
        """The moments of the position that read queries, keys or weights."""
        position = self.position
        return Content(position.bias if self._reads else None, heads.project, position.mix if self._mixes else None)

    def keys_and_values(self, heads: Projections, x: Tensor, ctx: Context, plan: Plan) -> tuple[Tensor, Tensor]:
        if ctx.memory is not None and ctx.state:  # the memory of a decoder never changes: projected once
            return ctx.state["k"], ctx.state["v"]
        source = leading(x, plan.k.positions.shape[-1] - ctx.past) if ctx.memory is None else ctx.memory
        k = self.position.rotate(heads.keys(source), plan.k_tables, "key")
        v = heads.values(source)
        if ctx.state is None:
            return k, v
        if ctx.memory is not None:
            ctx.state.update(k=k, v=v)
            return k, v
        return remember(ctx.state, k, v, ctx.past)


def leading(x: Tensor, rows: int) -> Tensor:
    """The first rows, which are the keys: all, but where a second stream asks behind them."""
    return x if x.shape[1] == rows else x[:, :rows]  # a slice of all would still be copied in the backward pass


def remember(state: State, k: Tensor, v: Tensor, past: int) -> tuple[Tensor, Tensor]:
    """Writes new keys and values behind the `past` that the state holds, and returns all of them."""
    end = past + k.shape[2]
    for name, fresh in (("k", k), ("v", v)):
        state[name][:, :, past:end] = fresh
    return state["k"][:, :, :end], state["v"][:, :, :end]
