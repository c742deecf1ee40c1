"""GRU, compared with the paper's equations and with torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paribus import Stack, TokenLayout

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
sides = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
ROWS = TokenLayout(torch.arange(8).unsqueeze(0))


def loop_reference(part: Any, layout: Tensor) -> Tensor:
    """Run the equations of r, z and the new state over (T, D) -> (T, K)."""
    h = torch.zeros(part.repeats.in_features, dtype=layout.dtype)
    module = []
    for row in layout:
        (r, z, n), (r_h, z_h, n_h) = part.reads(row).chunk(3), part.repeats(h).chunk(3)
        r, z = torch.sigmoid(r + r_h), torch.sigmoid(z + z_h)
        h = (1 - z) * torch.tanh(n + r * n_h) + z * h
        module.append(h)
    return torch.stack(module)


@sides
def test_matches_a_loop_implementation(causal: bool, build_stack: BuildStack, randn: Randn) -> None:
    stack: Any = build_stack("gru", causal=causal)
    x, parts = randn(1, 8, 12), stack.layers[0].attention.directions
    expected = loop_reference(parts[0], x[0])
    if not causal:
        expected = torch.cat([expected, loop_reference(parts[1], x[0].flip(0)).flip(0)], dim=-1)
    assert torch.allclose(stack(x, ROWS).hidden[0], expected, rtol=0, atol=1e-9)


@sides
def test_matches_torch(causal: bool, build_stack: BuildStack, randn: Randn) -> None:
    stack: Any = build_stack("gru", causal=causal)
    weights = [weight for part in stack.layers[0].attention.directions for weight in part.weights]
    hf_module = nn.GRU(12, 12 if causal else 6, batch_first=True, bidirectional=not causal).double()
    with torch.no_grad():
        for actual, reference in zip(weights, hf_module.parameters(), strict=True):
            reference.copy_(actual)
    x = randn(2, 8, 12)
    assert torch.allclose(stack(x, ROWS).hidden, hf_module(x)[0], rtol=0, atol=1e-12)
