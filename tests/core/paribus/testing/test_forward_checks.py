"""Failures in decoding, kernels, gradients, FLOPs and captured attention weights."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
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
from paribus.complexity.counting import flop_counter
from paribus.registry import Registry
from paribus.testing import examine

Factory = Callable[..., Any]
FailureOf = Callable[[type[Any], str], str]
DECODING = "chunked decoding equals one pass"
WEIGHTS = "attention weights match their declaration"
GRADIENTS = "gradient reaches every parameter"
FLOPS = "FLOPs match their declaration"
MEMORY = "memories of any size are read"


def test_cache_that_loses_tokens_is_reported(attention: Factory, failure_of: FailureOf) -> None:
    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        if ctx.state and ctx.past:
            ctx.state["k"][:, :, 0] = 0
        merged: Tensor = self.heads.merge(self.attend(self.heads, x, ctx))
        return merged

    message = failure_of(attention(forward=forward), DECODING)
    assert message.startswith(f"{DECODING} (gpt-tiny): 2 tokens decoded in chunks of 1, 1 differ by")


def test_missing_decoding_state_is_reported_with_the_component_s_line(
    attention: Factory, failure_of: FailureOf
) -> None:
    message = failure_of(attention(start=lambda self, batch, length, like: {}), DECODING)
    assert f"{DECODING} (gpt-tiny): KeyError" in message
    assert "conftest.py" in message


def test_wrong_state_size_is_reported(attention: Factory, failure_of: FailureOf) -> None:
    def start(self: Any, batch: int, length: int, like: Tensor) -> Any:
        return empty_cache(self.shape, self.shape.heads, batch, length + 1, like)

    assert "declares 32 elements of state for 1 tokens, but `start` allocates 64" in failure_of(
        attention(start=start), "decoding state has the declared size"
    )


@pytest.mark.thorough
def test_missing_cost_is_reported(attention: Factory, failure_of: FailureOf) -> None:
    free = attention(cost=lambda self, load: Cost())
    assert "declares 0 FLOPs for 12 tokens, but torch counts " in failure_of(free, FLOPS)


def test_wrong_cost_of_a_feedforward_is_reported(feedforward: Factory, failure_of: FailureOf) -> None:
    expensive = feedforward(cost=lambda self, load: Cost(flops=7 * load.queries))
    assert "declares 84 FLOPs for 12 tokens, but torch counts 0" in failure_of(expensive, FLOPS)


def test_missing_cost_of_a_bias_is_reported(position: Factory, failure_of: FailureOf) -> None:
    def bias(self: Any, pair: Pair) -> Tensor:
        queries, keys = (positions.to(pair.dtype) for positions in (pair.q_positions, pair.k_positions))
        return (queries.unsqueeze(-1) @ keys.unsqueeze(-2)).unsqueeze(1).expand(-1, pair.heads, -1, -1)

    free = position(traits={"hooks": ["bias"], "bias": "positions", "owner": "stack"}, bias=bias)
    assert "declares 0 FLOPs for 12 queries and 12 keys, but torch counts 288" in failure_of(free, FLOPS)


@pytest.mark.thorough
def test_window_may_cost_less_than_full_attention_but_not_more(attention: Factory, failure_of: FailureOf) -> None:
    def windowed(cost: int) -> Any:
        def init(self: Any, shape: Shape) -> None:
            nn.Module.__init__(self)
            self.shape = shape
            self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
            self.attend = Attend(shape, Visibility(causal=shape.causal, window=4), ScoreOptions())

        return attention(__init__=init, cost=lambda self, load: Cost(cost))

    assert failure_of(windowed(1), FLOPS) == ""
    assert "with a window declares 100,000,000 FLOPs for 12 tokens" in failure_of(windowed(10**8), FLOPS)


@pytest.mark.thorough
def test_bias_that_ignores_block_positions_is_reported(position: Factory, failure_of: FailureOf) -> None:
    def bias(self: Any, pair: Pair) -> Tensor:
        queries, keys = pair.q_positions.shape[-1], pair.k_positions.shape[-1]
        distance = torch.arange(queries).unsqueeze(-1) - torch.arange(keys)  # rows of the block, not of the sequence
        return -distance.abs().to(pair.dtype).expand(1, pair.heads, -1, -1)

    block_bias = position(bias=bias, traits={"hooks": ["bias"], "bias": "positions", "owner": "stack"})
    message = failure_of(block_bias, "kernels agree")
    assert re.search(r"attention=[a-z-]+\): for 112 tokens, .* kernel `(blocked|gathered)` differs by", message)


def test_unused_parameter_is_reported(attention: Factory, failure_of: FailureOf) -> None:
    def init(self: Any, shape: Shape) -> None:
        nn.Module.__init__(self)
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
        self.attend = Attend(shape, visibility_of(shape), ScoreOptions())
        self.extra = nn.Linear(2, 2)

    message = failure_of(attention(__init__=init), GRADIENTS)
    assert "no gradient reaches `body.layers.0.attention.extra.weight`" in message


def average(self: Any, x: Tensor, ctx: Context) -> Tensor:
    """Return the mean of the memory for every query, or the sum of the tokens so far."""
    if ctx.memory is not None:
        mixed = self.map(ctx.memory.mean(1, keepdim=True)).expand(-1, x.shape[1], -1)
    else:
        mixed = self.map(x.cumsum(1))
    return mixed  # type: ignore[no-any-return]  # a module of whatever class it is


def init_average(self: Any, shape: Shape) -> None:
    nn.Module.__init__(self)
    self.map = nn.Linear(shape.width, shape.width)


def test_unused_query_norm_of_cross_attention_is_reported(attention: Factory, failure_of: FailureOf) -> None:
    members = {"forward": average, "__init__": init_average, "start": lambda self, batch, length, like: {}}
    message = failure_of(attention(**members, cost=lambda self, load: Cost()), GRADIENTS)
    assert f"{GRADIENTS} (seq2seq-tiny): no gradient reaches `body.layers.0.placement.norms.cross.weight`" in message
    assert failure_of(attention(**members, traits={**SOFTMAX_TRAITS, "content_based": False}), GRADIENTS) == ""


def test_zero_gradient_is_reported(feedforward: Factory, failure_of: FailureOf) -> None:
    def init(self: Any, shape: Shape) -> None:
        nn.Module.__init__(self)
        self.map = nn.Linear(shape.width, shape.width)

    dead = feedforward(__init__=init, forward=lambda self, x: (self.map(x) * 0 + x, None))
    assert "the gradient of `body.layers.0.feedforward.map.weight` is 0 everywhere" in failure_of(dead, GRADIENTS)


def test_parameter_unused_by_few_tokens_is_tested_on_noise(feedforward: Factory, failure_of: FailureOf) -> None:
    def init(self: Any, shape: Shape) -> None:
        nn.Module.__init__(self)
        self.map = nn.Linear(shape.width, shape.width)

    def forward(self: Any, x: Tensor) -> tuple[Tensor, None]:
        is_long = x.shape[1] > 100  # stands for a condition that few tokens meet
        return x + self.map(x) * is_long, None

    assert failure_of(feedforward(__init__=init, forward=forward), GRADIENTS) == ""


def test_flops_of_a_feedforward_are_counted_on_real_inputs(feedforward: Factory, failure_of: FailureOf) -> None:
    def init(self: Any, shape: Shape) -> None:
        nn.Module.__init__(self)
        self.map = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self: Any, x: Tensor) -> tuple[Tensor, None]:
        selected = x.sum(-1) < float("inf")  # all tokens, but the number depends on the input
        y = x.clone()
        y[selected] = self.map(x[selected])
        return y, None

    counted = feedforward(
        __init__=init, forward=forward, cost=lambda self, load: Cost(2 * load.queries * self.map.weight.numel())
    )
    assert failure_of(counted, FLOPS) == ""


def test_non_finite_gradient_is_reported(feedforward: Factory, failure_of: FailureOf) -> None:
    def init(self: Any, shape: Shape) -> None:
        nn.Module.__init__(self)
        self.map = nn.Linear(shape.width, shape.width)

    infinite = feedforward(__init__=init, forward=lambda self, x: (x + (self.map(x) * 0).abs().sqrt(), None))
    assert "is not finite" in failure_of(infinite, GRADIENTS)


def test_cost_receives_the_number_of_tokens(feedforward: Factory, failure_of: FailureOf) -> None:
    loads: list[Load] = []

    def cost(self: Any, load: Load) -> Cost:
        loads.append(load)
        return Cost()

    assert failure_of(feedforward(cost=cost), FLOPS) == ""
    assert {load.queries for load in loads} == {12}


def capture_changed(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return a forward method that captures changed weights."""

    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        merged: Tensor = self.heads.merge(self.attend(self.heads, x, ctx))
        if ctx.captured is not None:
            ctx.captured["weights"] = change(ctx.captured["weights"])
        return merged

    return forward


def test_weights_that_sum_to_more_than_1_are_reported(attention: Factory, failure_of: FailureOf) -> None:
    message = failure_of(attention(forward=capture_changed(lambda weights: weights * 2)), WEIGHTS)
    assert message.startswith(f"{WEIGHTS} (encoder-tiny): layer 0: `weights` of a query sum to 2; expected 1")


def test_negative_weights_are_reported(attention: Factory, failure_of: FailureOf) -> None:
    message = failure_of(attention(forward=capture_changed(lambda weights: -weights)), WEIGHTS)
    assert "`weights` has a minimum of -1; expected at least 0" in message


def test_weights_of_future_tokens_are_reported(attention: Factory, failure_of: FailureOf) -> None:
    traits = {**SOFTMAX_TRAITS, "normalized": False, "documents": False}
    late = attention(forward=capture_changed(lambda weights: weights.flip(-1)), traits=traits)
    assert "(gpt-tiny): layer 0: `weights` has " in failure_of(late, WEIGHTS)


def test_weights_of_padding_are_reported(attention: Factory, failure_of: FailureOf) -> None:
    traits = {**SOFTMAX_TRAITS, "causal": False}
    even = attention(forward=capture_changed(lambda weights: weights * 0 + 1 / weights.shape[-1]), traits=traits)
    assert "layer 0: padding on the right has the weight 0.14" in failure_of(even, WEIGHTS)


def test_weights_of_another_shape_are_reported(attention: Factory, failure_of: FailureOf) -> None:
    message = failure_of(attention(forward=capture_changed(lambda weights: weights[:, 0])), WEIGHTS)
    assert "has the shape (2, 1, 1); expected (B, H, T, S) for keys of shape (2, 1)" in message


def test_missing_weights_are_reported(attention: Factory, failure_of: FailureOf) -> None:
    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        merged: Tensor = self.heads.merge(self.attend(self.heads, x, ctx._replace(captured=None)))
        return merged

    assert "its trait `weights` is True, but no tensor `weights` is captured" in failure_of(
        attention(forward=forward), WEIGHTS
    )


def test_output_that_changes_with_captured_weights_is_reported(attention: Factory, failure_of: FailureOf) -> None:
    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        merged: Tensor = self.heads.merge(self.attend(self.heads, x, ctx))
        return merged if ctx.captured is None else merged * 2

    assert "when weights are captured" in failure_of(attention(forward=forward), WEIGHTS)


@pytest.mark.thorough
def test_undeclared_weights_fail_and_no_weights_are_skipped(attention: Factory, components: Registry) -> None:
    silent = attention(traits={**SOFTMAX_TRAITS, "weights": False, "cross": False})
    report = examine(silent, registry=components, only=[WEIGHTS])
    assert [finding.message for finding in report.findings] == [
        "layer 0: its trait `weights` is False, but a tensor `weights` is captured"
    ]
    report = examine("attention.linear", registry=components, only=[WEIGHTS])
    assert report.skipped == (WEIGHTS,)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_flops_of_matrix_products_and_fourier_transforms(device: str) -> None:
    x = torch.zeros(3, 8, 6, device=device)
    with flop_counter() as counter:
        x @ x.transpose(1, 2)
    assert counter.get_total_flops() == 2 * 3 * 8 * 8 * 6
    with flop_counter() as counter:
        torch.fft.fft2(x)
    assert counter.get_total_flops() == pytest.approx(3 * 5 * 48 * math.log2(48), abs=2)
