"""Uniform attention, compared with loops and with softmax attention of equal scores."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import PADDING, Memory, Stack, TokenLayout

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
sides = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
ROWS = TokenLayout(
    torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 0, 1, 2, 3, 0, 1]]),
    torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1, PADDING, PADDING]]),
)


@sides
def test_matches_a_loop_implementation(causal: bool, build_stack: BuildStack, randn: Randn) -> None:
    stack: Any = build_stack("uniform", causal=causal)
    x, heads = randn(2, 8, 12), stack.layers[0].attention.heads
    actual = stack(x, ROWS).hidden
    assert ROWS.documents is not None
    for b, documents in enumerate(ROWS.documents.tolist()):
        for i in range(8):
            visible = [j for j in range(8) if documents[j] == documents[i] >= 0 and not (causal and j > i)]
            if visible:
                mean = sum(heads.v(x[b, j]) for j in visible) / len(visible)
                assert torch.allclose(actual[b, i], heads.o(mean), rtol=0, atol=1e-9)


@sides
@pytest.mark.parametrize("memory_width", [None, 10])
def test_matches_mha_with_equal_scores(
    causal: bool, memory_width: int | None, build_stack: BuildStack, randn: Randn
) -> None:
    options = {"causal": causal, "layers": 2, "residual": True, "memory_width": memory_width}
    uniform, scored = build_stack("uniform", **options), build_stack("mha", **options)
    weights = dict(uniform.named_parameters())
    with torch.no_grad():
        for path, parameter in scored.named_parameters():
            parameter.copy_(weights[path]) if path in weights else parameter.zero_()
    assert set(weights) <= set(dict(scored.named_parameters()))
    memory = Memory(randn(2, 7, 10, seed=1), TokenLayout(torch.arange(7).unsqueeze(0))) if memory_width else None
    x = randn(2, 8, 12)
    for layout in (TokenLayout(torch.arange(8).unsqueeze(0)), *([] if memory else [ROWS])):
        real = slice(None) if layout.documents is None else layout.documents >= 0
        left, right = (stack(x, layout, memory).hidden[real] for stack in (uniform, scored))
        assert torch.allclose(left, right, rtol=0, atol=1e-9)


def test_a_long_running_mean_does_not_drift(build_stack: BuildStack, randn: Randn) -> None:
    stack: Any = build_stack("uniform")
    x = randn(1, 4096, 12) + 3
    layout = TokenLayout(torch.arange(4096).unsqueeze(0), (torch.arange(4096) // 1000).unsqueeze(0))
    exact = stack(x, layout).hidden
    near = stack.float()(x.float(), layout).hidden
    assert torch.allclose(near.double(), exact, rtol=0, atol=1e-4)
