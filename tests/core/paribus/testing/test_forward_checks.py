"""What the kit says of components that come to something else in another way of computing them."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Context,
    Cost,
    Heads,
    Load,
    Pair,
    ScoreOptions,
    Shape,
    Visibility,
    empty_cache,
    visibility_of,
)

Faulty = Callable[..., Any]
Found = Callable[[type[Any], str], str]


def test_a_cache_that_forgets_is_shown_with_the_smallest_chunks(attention: Faulty, found: Found) -> None:
    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        if ctx.state and ctx.past:
            ctx.state["k"][:, :, 0] = 0
        merged: Tensor = self.heads.merge(self.attend(self.heads, x, ctx))
        return merged

    said = found(attention(forward=forward), "decoding")
    assert said.startswith("decoding (gpt-tiny): 2 tokens decoded in chunks of 1, 1 differ by")


def test_a_state_that_is_not_started_is_shown_with_where_it_failed(attention: Faulty, found: Found) -> None:
    said = found(attention(start=lambda self, batch, length, like: {}), "decoding")
    assert "decoding (gpt-tiny): KeyError" in said
    assert "attend.py" in said


def test_a_state_that_is_not_the_one_declared_is_shown(attention: Faulty, found: Found) -> None:
    def start(self: Any, batch: int, length: int, like: Tensor) -> Any:
        return empty_cache(self.shape, self.shape.heads, batch, length + 1, like)

    assert "it declares 32 elements of state for 1 tokens, but stores 64" in found(attention(start=start), "state")


def test_a_cost_that_is_left_out_is_shown(attention: Faulty, found: Found) -> None:
    free = attention(cost=lambda self, load: Cost())
    assert "it declares 0 operations for 12 rows, but torch counts " in found(free, "cost")


def test_a_feed_forward_is_counted_as_well(feedforward: Faulty, found: Found) -> None:
    dear = feedforward(cost=lambda self, load: Cost(flops=7 * load.queries))
    assert "it declares 84 operations for 12 rows, but torch counts 0" in found(dear, "cost")


def test_a_window_may_cost_less_than_all_and_never_more(attention: Faulty, found: Found) -> None:
    def windowed(cost: int) -> Any:
        def begin(self: Any, shape: Shape) -> None:
            nn.Module.__init__(self)
            self.shape = shape
            self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
            self.attend = Attend(shape, Visibility(causal=shape.causal, window=4), ScoreOptions())

        return attention(__init__=begin, cost=lambda self, load: Cost(cost))

    assert found(windowed(1), "cost") == ""
    assert "a window declares 100,000,000 operations for 12 tokens, of " in found(windowed(10**8), "cost")


def test_a_bias_that_is_not_valid_on_a_block_of_rows_is_shown(position: Faulty, found: Found) -> None:
    def bias(self: Any, pair: Pair) -> Tensor:
        queries, keys = pair.q_positions.shape[-1], pair.k_positions.shape[-1]
        distance = torch.arange(queries).unsqueeze(-1) - torch.arange(keys)  # rows of the block, not of the sequence
        return -distance.abs().to(pair.dtype).expand(1, pair.heads, -1, -1)

    told = position(bias=bias, traits={"hooks": ["bias"], "bias": "positions", "owner": "stack"})
    said = found(told, "kernels")
    assert re.search(r"attention=[a-z-]+\): on 112 tokens the kernel `(blocked|gathered)` differs by", said)


def test_a_parameter_that_is_never_used_is_named(attention: Faulty, found: Found) -> None:
    def begin(self: Any, shape: Shape) -> None:
        nn.Module.__init__(self)
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
        self.attend = Attend(shape, visibility_of(shape), ScoreOptions())
        self.extra = nn.Linear(2, 2)

    said = found(attention(__init__=begin), "gradients")
    assert "no gradient reaches `body.layers.0.attention.extra.weight`: it is never used" in said


def averaging(self: Any, x: Tensor, ctx: Context) -> Tensor:
    """The mean of the memory, whatever asks it; of its own rows, those so far."""
    if ctx.memory is not None:
        mixed = self.map(ctx.memory.mean(1, keepdim=True)).expand(-1, x.shape[1], -1)
    else:
        mixed = self.map(x.cumsum(1))
    return mixed  # type: ignore[no-any-return]  # a module of whatever class it is


def averages(self: Any, shape: Shape) -> None:
    nn.Module.__init__(self)
    self.map = nn.Linear(shape.width, shape.width)


def test_rows_that_ask_a_memory_in_vain_are_shown_unless_that_is_declared(attention: Faulty, found: Found) -> None:
    deaf = {"forward": averaging, "__init__": averages, "start": lambda self, batch, length, like: {}}
    said = found(attention(**deaf, cost=lambda self, load: Cost()), "gradients")
    assert "gradients (seq2seq-tiny): no gradient reaches `body.layers.0.placement.norms.cross.weight`" in said
    assert found(attention(**deaf, traits={**SOFTMAX_TRAITS, "content_based": False}), "gradients") == ""


def test_a_gradient_of_nothing_is_shown(feedforward: Faulty, found: Found) -> None:
    def begin(self: Any, shape: Shape) -> None:
        nn.Module.__init__(self)
        self.map = nn.Linear(shape.width, shape.width)

    dead = feedforward(__init__=begin, forward=lambda self, x: (self.map(x) * 0 + x, None))
    assert "the gradient of `body.layers.0.feedforward.map.weight` is 0 everywhere" in found(dead, "gradients")


def test_what_no_row_of_a_model_uses_is_tried_on_rows_of_every_direction(feedforward: Faulty, found: Found) -> None:
    def begin(self: Any, shape: Shape) -> None:
        nn.Module.__init__(self)
        self.map = nn.Linear(shape.width, shape.width)

    def forward(self: Any, x: Tensor) -> tuple[Tensor, None]:
        seldom = x.shape[1] > 100  # as if only one row in many were of its kind
        return x + self.map(x) * seldom, None

    assert found(feedforward(__init__=begin, forward=forward), "gradients") == ""


def test_a_feed_forward_is_counted_on_rows_that_there_are(feedforward: Faulty, found: Found) -> None:
    def begin(self: Any, shape: Shape) -> None:
        nn.Module.__init__(self)
        self.map = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self: Any, x: Tensor) -> tuple[Tensor, None]:
        kept = x.sum(-1) < float("inf")  # all of them, but how many that is depends on the rows
        y = x.clone()
        y[kept] = self.map(x[kept])
        return y, None

    counted = feedforward(
        __init__=begin, forward=forward, cost=lambda self, load: Cost(2 * load.queries * self.map.weight.numel())
    )
    assert found(counted, "cost") == ""


def test_a_gradient_that_is_not_finite_is_shown(feedforward: Faulty, found: Found) -> None:
    def begin(self: Any, shape: Shape) -> None:
        nn.Module.__init__(self)
        self.map = nn.Linear(shape.width, shape.width)

    endless = feedforward(__init__=begin, forward=lambda self, x: (x + (self.map(x) * 0).abs().sqrt(), None))
    assert "is not finite" in found(endless, "gradients")


def test_what_is_declared_of_the_load_is_what_is_asked(feedforward: Faulty, found: Found) -> None:
    asked: list[Load] = []

    def cost(self: Any, load: Load) -> Cost:
        asked.append(load)
        return Cost()

    assert found(feedforward(cost=cost), "cost") == ""
    assert {load.queries for load in asked} == {12}
