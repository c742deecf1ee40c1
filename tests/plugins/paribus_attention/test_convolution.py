"""Convolution, compared with loops and with torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paribus import PADDING, Stack, TokenLayout

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
sides = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
kernels = pytest.mark.parametrize("kernel", [2, 3, 4, 7, 30])
DOCUMENTS = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1], [0, PADDING, 0, 1, 1, PADDING, 1, PADDING]])


@pytest.mark.covering
@sides
@kernels
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["plain", "packed"])
def test_matches_a_loop_implementation(
    causal: bool, kernel: int, documents: Tensor | None, build_stack: BuildStack, randn: Randn
) -> None:
    stack: Any = build_stack("conv", causal=causal, kernel=kernel)
    module, x = stack.layers[0].attention, randn(2, 8, 12)
    actual = stack(x, TokenLayout(torch.arange(8).expand(2, -1), documents)).hidden
    weight, bias = module.depthwise.weight, module.depthwise.bias
    past_tokens = kernel - 1 if causal else kernel // 2
    for b in range(2):
        numbers = [0] * 8 if documents is None else documents[b].tolist()
        for document in {number for number in numbers if number >= 0}:
            line = [row for row in range(8) if numbers[row] == document]
            for position_name, row in enumerate(line):
                near = bias.clone()
                for tap in range(kernel):
                    if 0 <= position_name - past_tokens + tap < len(line):
                        near = near + weight[:, tap] * x[b, line[position_name - past_tokens + tap]]
                assert torch.allclose(actual[b, row], module.pointwise(near), rtol=0, atol=1e-9)


@sides
def test_matches_torch(causal: bool, build_stack: BuildStack, randn: Randn) -> None:
    stack: Any = build_stack("conv", causal=causal, kernel=5)
    module, x = stack.layers[0].attention, randn(2, 40, 12)
    depthwise = nn.Conv1d(12, 12, 5, padding=4 if causal else 2, groups=12).double()
    pointwise = nn.Conv1d(12, 12, 1).double()
    with torch.no_grad():
        depthwise.weight.copy_(module.depthwise.weight.unsqueeze(1))
        depthwise.bias.copy_(module.depthwise.bias)  # type: ignore[union-attr]  # it has one
        pointwise.weight.copy_(module.pointwise.weight.unsqueeze(-1))
        pointwise.bias.copy_(module.pointwise.bias)  # type: ignore[union-attr]  # it has one
    expected = pointwise(depthwise(x.transpose(1, 2))[..., :40]).transpose(1, 2)
    assert torch.allclose(stack(x, TokenLayout(torch.arange(40).unsqueeze(0))).hidden, expected, rtol=0, atol=1e-9)


@sides
@kernels
def test_the_window_has_the_size_of_the_kernel(
    causal: bool, kernel: int, build_stack: BuildStack, randn: Randn
) -> None:
    stack, x, layout = (
        build_stack("conv", causal=causal, kernel=kernel),
        randn(1, 64, 12),
        TokenLayout(torch.arange(64)[None]),
    )
    changed_input = x.clone()
    changed_input[0, 32] += 1
    changed = (stack(changed_input, layout).hidden != stack(x, layout).hidden).any(-1)[0].nonzero().flatten().tolist()
    behind, ahead = (kernel - 1, 0) if causal else (kernel // 2, kernel - 1 - kernel // 2)
    assert changed == list(range(32 - ahead, 32 + behind + 1))
