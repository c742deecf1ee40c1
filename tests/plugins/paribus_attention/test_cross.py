"""Cross-attention: visibility, padding and the decoding cache."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import PADDING, Memory, Shape, Stack, TokenLayout
from paribus_attention import attention

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
kinds = pytest.mark.parametrize(
    ("name", "options"), [("mha", {}), ("gqa", {"kv_heads": 2}), ("mqa", {})], ids=["mha", "gqa", "mqa"]
)


def ramp(length: int) -> TokenLayout:
    return TokenLayout(torch.arange(length).unsqueeze(0))


@kinds
def test_every_query_sees_the_whole_memory_in_causal_stacks_too(
    name: str, options: dict[str, Any], build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(name, causal=True, memory_width=10, **options)
    x, memory = randn(1, 3, 12), randn(1, 7, 10, seed=1)

    for row in range(3):
        requested = memory.clone().requires_grad_()
        (grad,) = torch.autograd.grad(stack(x, ramp(3), Memory(requested, ramp(7))).hidden[0, row].sum(), requested)
        assert (grad.abs().sum(-1) > 0).all()
    layer: Any = stack.layers[0]
    heads = layer.cross.heads
    q, k, v = heads.queries(x), heads.keys(memory), heads.values(memory)
    k, v = (side.repeat_interleave(4 // side.shape[1], 1) for side in (k, v))
    mixed = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
    actual = stack(x, ramp(3), Memory(memory, ramp(7))).hidden
    assert torch.allclose(actual, heads.merge(mixed), rtol=0, atol=1e-9)


@kinds
def test_padding_and_order_of_a_memory_do_not_change_outputs(
    name: str, options: dict[str, Any], build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(name, memory_width=10, **options)
    x, memory = randn(1, 3, 12), randn(1, 7, 10, seed=1)
    padded = TokenLayout(torch.arange(7).unsqueeze(0), torch.tensor([[0, 0, 0, 0, PADDING, PADDING, PADDING]]))
    alone = stack(x, ramp(3), Memory(memory[:, :4], ramp(4))).hidden
    assert torch.allclose(stack(x, ramp(3), Memory(memory, padded)).hidden, alone, rtol=0, atol=1e-9)
    turned = memory[:, [2, 0, 3, 1]]
    assert torch.allclose(stack(x, ramp(3), Memory(turned, ramp(4))).hidden, alone, rtol=0, atol=1e-9)


@kinds
def test_decoding_caches_the_projected_memory(
    name: str, options: dict[str, Any], build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(name, "rope", layers=2, residual=True, memory_width=10, **options)
    x, memory = randn(2, 6, 12), Memory(randn(2, 7, 10, seed=1), ramp(7))
    states = stack.start(2, 6)
    parts = []
    for start, end in ((0, 3), (3, 4), (4, 6)):
        layout = TokenLayout(torch.arange(start, end).unsqueeze(0))
        parts.append(stack(x[:, start:end], layout, memory, states).hidden)
    assert torch.allclose(torch.cat(parts, 1), stack(x, ramp(6), memory).hidden, rtol=0, atol=1e-9)
    assert states.layers[0]["cross"]["k"].shape[2] == 7


@kinds
def test_the_initial_state_is_empty(name: str, options: dict[str, Any]) -> None:
    module = attention()[name](Shape(12, 4, 4, 8, 11, 1, memory_width=10), **options)
    assert module.start(2, 8, torch.zeros(())) == {}
