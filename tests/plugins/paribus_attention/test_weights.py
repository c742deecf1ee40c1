"""Captured attention weights: with the values they give the output."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import PADDING, Memory, ScoreOptions, Stack, TokenLayout
from paribus.kernels import KERNELS
from paribus_attention import attention
from paribus_position import position

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
KINDS: dict[str, dict[str, Any]] = {
    "additive": {},
    "bilinear": {"width": 16},
    "block-sparse": {"block_size": 2, "global_blocks": 1, "random_blocks": 1},
    "differential": {},
    "dilated": {"window": 3, "dilation": 2},
    "dot": {"width": 16},
    "gqa": {"kv_heads": 2},
    "local-m": {"width": 16},
    "local-p": {"width": 16},
    "mha": {},
    "mla": {},
    "mlp-score": {},
    "moba": {"block_size": 2, "top": 1},
    "mqa": {},
    "relu": {},
    "restricted": {"window": 3},
    "sigmoid": {},
    "softpick": {},
    "sparsemax": {},
    "stick-breaking": {},
    "talking-heads": {},
}
WITHOUT_SINKS = {"relu", "sigmoid", "stick-breaking"}
POSITION_NAMES = ("none", "rope", "alibi", "disentangled")
CELLS = [
    (kind, position_name)
    for kind in KINDS
    for position_name in POSITION_NAMES
    if {
        *position()[position_name].traits["hooks"],
        *(["read"] if position()[position_name].traits["bias"] == "content" else []),
    }
    <= {"embed", *attention()[kind].traits["position_hooks"]}
]
RAMP = torch.arange(9).unsqueeze(0)
PACKED = TokenLayout(RAMP % 5, torch.tensor([[0] * 5 + [1] * 4, [0] * 5 + [1] * 2 + [PADDING] * 2]))


def weighted_values(module: Any, weights: Tensor, source: Tensor) -> Tensor:
    """Weight the values of an attention: (B, H, T, S), (B, S, D) -> (B, T, D)."""
    heads = module.heads
    values = heads.values(heads.latents(source)[0] if hasattr(heads, "latents") else source)  # (B, G, S, K)
    if hasattr(module, "lambda_init"):  # values of double width, each pair's divided by its root mean square
        values = torch.cat(values.chunk(2, dim=1), dim=-1)
        values = weights @ values.repeat_interleave(weights.shape[1] // values.shape[1], 1)
        values = module.norm(values) * (1 - module.lambda_init)
    else:
        values = weights @ values.repeat_interleave(weights.shape[1] // values.shape[1], 1)
    merged: Tensor = heads.merge(values)
    return merged


def test_every_attention_with_weights_is_tested() -> None:
    assert all(attention()[kind].traits["weights"] for kind in KINDS)


@pytest.mark.parametrize(("kind", "position_name"), CELLS)
def test_captured_weights_times_values_match_every_kernel(
    kind: str, position_name: str, build_stack: BuildStack, randn: Randn
) -> None:
    causal = attention()[kind].traits["causal"]
    stack = build_stack(kind, position_name, **KINDS[kind], causal=causal)
    module: Any = stack.layers[0]
    x = stack.add_positions(randn(2, 9, stack.shape.width), PACKED.positions)
    output = stack(x, PACKED, capture=True)
    weights = output.captured[0]["weights"]
    assert torch.allclose(stack(x, PACKED).hidden, weighted_values(module.attention, weights, x), rtol=0, atol=1e-9)
    readable = build_stack(kind, position_name, **KINDS[kind], causal=causal, kernels=KERNELS[-1:])
    assert torch.equal(readable(x, PACKED, capture=True).captured[0]["weights"], weights)


@pytest.mark.parametrize("kind", [name for name in KINDS if attention()[name].traits["cross"]])
def test_weights_of_a_memory_skip_padding(kind: str, build_stack: BuildStack, randn: Randn) -> None:
    stack = build_stack(
        kind, **KINDS[kind], causal=attention()[kind].traits["causal"], memory_width=KINDS[kind].get("width", 12)
    )
    module: Any = stack.layers[0]
    x, memory = randn(2, 3, stack.shape.width), randn(2, 5, stack.shape.width, seed=1)
    visible = TokenLayout(torch.arange(5).unsqueeze(0), torch.tensor([[0] * 5, [0] * 3 + [PADDING] * 2]))
    output = stack(x, TokenLayout(torch.arange(3).unsqueeze(0)), Memory(memory, visible), capture=True)
    weights = output.captured[0]["cross"]
    assert weights.shape[-2:] == (3, 5)
    assert (weights[1, ..., 3:] == 0).all()
    assert torch.allclose(output.hidden, weighted_values(module.cross, weights, memory), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if attention()[kind].traits["causal"]])
def test_weights_of_a_step_equal_the_last_queries_of_one_pass(kind: str, build_stack: BuildStack, randn: Randn) -> None:
    stack = build_stack(kind, "none", **KINDS[kind])
    x = randn(2, 9, stack.shape.width)
    full_output = stack(x, TokenLayout(RAMP), capture=True).captured[0]["weights"]
    states = stack.start(2, 9)
    stack(x[:, :7], TokenLayout(RAMP[:, :7]), states=states)
    for row in (7, 8):
        step = stack(x[:, row : row + 1], TokenLayout(RAMP[:, row : row + 1]), states=states, capture=True)
        assert torch.allclose(
            step.captured[0]["weights"], full_output[:, :, row : row + 1, : row + 1], rtol=0, atol=1e-9
        )


@pytest.mark.parametrize("kind", sorted({*KINDS} - WITHOUT_SINKS))
def test_a_sink_reduces_the_sum_of_weights(kind: str, build_stack: BuildStack, randn: Randn) -> None:
    causal = attention()[kind].traits["causal"]
    stack = build_stack(kind, "none", **KINDS[kind], causal=causal, scores=ScoreOptions(sinks=True))
    weights = stack(randn(2, 9, stack.shape.width), TokenLayout(RAMP), capture=True).captured[0]["weights"]
    if attention()[kind].traits["normalized"]:
        assert (weights >= 0).all()
        sums = weights.sum(-1)
        assert (sums <= 1 + 1e-12).all()
        assert (sums < 1 - 1e-6).any() if kind == "sparsemax" else (sums < 1).all()  # a low sink has no share
    module: Any = stack.layers[0]
    assert torch.allclose(
        stack(randn(2, 9, stack.shape.width), TokenLayout(RAMP)).hidden,
        weighted_values(module.attention, weights, randn(2, 9, stack.shape.width)),
        rtol=0,
        atol=1e-9,
    )
