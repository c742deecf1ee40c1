"""Attention to the last token only."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paribus import PADDING, Memory, Stack, TokenLayout

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]


def ramp(length: int) -> TokenLayout:
    return TokenLayout(torch.arange(length).unsqueeze(0))


def test_every_token_gets_the_projection_of_the_last(build_stack: BuildStack, randn: Randn) -> None:
    stack: Any = build_stack("fixed", causal=False)
    x, heads = randn(2, 8, 12), stack.layers[0].attention.heads
    expected = heads.o(heads.v(x[:, 7])).unsqueeze(1)
    assert torch.allclose(stack(x, ramp(8)).hidden, expected.expand(-1, 8, -1), rtol=0, atol=1e-12)


def test_a_memory_is_read_at_its_last_token_that_is_not_padding(build_stack: BuildStack, randn: Randn) -> None:
    stack: Any = build_stack("fixed", memory_width=10)
    x, memory, heads = randn(2, 3, 12), randn(2, 7, 10, seed=1), stack.layers[0].cross.heads
    documents = torch.tensor([[0] * 5 + [PADDING] * 2, [PADDING] * 3 + [0] * 4])
    actual = stack(x, ramp(3), Memory(memory, TokenLayout(torch.arange(7).unsqueeze(0), documents))).hidden
    last_tokens = torch.stack([memory[0, 4], memory[1, 6]])
    assert torch.allclose(actual, heads.o(heads.v(last_tokens)).unsqueeze(1).expand(-1, 3, -1), rtol=0, atol=1e-12)
    reached = memory.clone().requires_grad_()
    full_output = stack(x, ramp(3), Memory(reached, ramp(7))).hidden
    (grad,) = torch.autograd.grad(full_output.sin().sum(), reached)
    assert grad[:, -1].all()
    assert not grad[:, :-1].any()


def test_a_document_without_a_memory_gets_zero(build_stack: BuildStack, randn: Randn) -> None:
    stack: Any = build_stack("fixed", memory_width=10)
    layout, memory_layout = (
        TokenLayout(torch.arange(3)[None], torch.tensor([[0, 1, 1]])),
        TokenLayout(torch.arange(2)[None], torch.tensor([[0, 0]])),
    )
    actual = stack(randn(1, 3, 12), layout, Memory(randn(1, 2, 10), memory_layout)).hidden
    assert torch.allclose(actual[0, 1:], stack.layers[0].cross.heads.o.bias.expand(2, -1), rtol=0, atol=1e-12)
