"""A convolution over rows, held against loops over its sums and against torch's own modules."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paribus import PADDING, Stack, TokenLayout

Stacked = Callable[..., Stack]
Drawn = Callable[..., Tensor]
sides = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
kernels = pytest.mark.parametrize("kernel", [2, 3, 4, 7, 30])
DOCUMENTS = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1], [0, PADDING, 0, 1, 1, PADDING, 1, PADDING]])


@sides
@kernels
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["plain", "packed"])
def test_matches_a_loop_implementation(
    causal: bool, kernel: int, documents: Tensor | None, stacked: Stacked, drawn: Drawn
) -> None:
    stack: Any = stacked("conv", causal=causal, kernel=kernel)
    made, x = stack.layers[0].attention, drawn(2, 8, 12)
    got = stack(x, TokenLayout(torch.arange(8).expand(2, -1), documents)).hidden
    weight, bias = made.depthwise.weight, made.depthwise.bias
    before = kernel - 1 if causal else kernel // 2
    for b in range(2):
        numbers = [0] * 8 if documents is None else documents[b].tolist()
        for document in {number for number in numbers if number >= 0}:
            line = [row for row in range(8) if numbers[row] == document]
            for place, row in enumerate(line):
                near = bias.clone()
                for tap in range(kernel):
                    if 0 <= place - before + tap < len(line):
                        near = near + weight[:, tap] * x[b, line[place - before + tap]]
                assert torch.allclose(got[b, row], made.pointwise(near), rtol=0, atol=1e-9)


@sides
def test_matches_torch(causal: bool, stacked: Stacked, drawn: Drawn) -> None:
    stack: Any = stacked("conv", causal=causal, kernel=5)
    made, x = stack.layers[0].attention, drawn(2, 40, 12)
    depthwise = nn.Conv1d(12, 12, 5, padding=4 if causal else 2, groups=12).double()
    pointwise = nn.Conv1d(12, 12, 1).double()
    with torch.no_grad():
        depthwise.weight.copy_(made.depthwise.weight.unsqueeze(1))
        depthwise.bias.copy_(made.depthwise.bias)  # type: ignore[union-attr]  # it has one
        pointwise.weight.copy_(made.pointwise.weight.unsqueeze(-1))
        pointwise.bias.copy_(made.pointwise.bias)  # type: ignore[union-attr]  # it has one
    wanted = pointwise(depthwise(x.transpose(1, 2))[..., :40]).transpose(1, 2)
    assert torch.allclose(stack(x, TokenLayout(torch.arange(40).unsqueeze(0))).hidden, wanted, rtol=0, atol=1e-9)


@sides
@kernels
def test_the_window_has_the_size_of_the_kernel(causal: bool, kernel: int, stacked: Stacked, drawn: Drawn) -> None:
    stack, x, rows = (
        stacked("conv", causal=causal, kernel=kernel),
        drawn(1, 64, 12),
        TokenLayout(torch.arange(64)[None]),
    )
    other = x.clone()
    other[0, 32] += 1
    changed = (stack(other, rows).hidden != stack(x, rows).hidden).any(-1)[0].nonzero().flatten().tolist()
    behind, ahead = (kernel - 1, 0) if causal else (kernel // 2, kernel - 1 - kernel // 2)
    assert changed == list(range(32 - ahead, 32 + behind + 1))
