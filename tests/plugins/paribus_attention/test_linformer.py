"""Linformer, compared with the paper's product."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

from paribus import PADDING, DataError, Stack, TokenLayout

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]


@pytest.mark.parametrize("shared", [True, False])
def test_matches_a_loop_implementation(shared: bool, build_stack: BuildStack, randn: Randn) -> None:
    stack: Any = build_stack("linformer", causal=False, rank=3, shared=shared)
    module, x = stack.layers[0].attention, randn(2, 8, 12)
    documents = torch.tensor([[0] * 8, [PADDING] * 2 + [0] * 3 + [PADDING] + [0, 0]])
    actual = stack(x, TokenLayout(torch.arange(8).expand(2, -1), documents)).hidden
    module.requires_grad_(requires_grad=False)
    over = [module.keys.weight.tolist(), (module.keys if shared else module.values).weight.tolist()]
    for b in range(2):
        real = [row for row in range(8) if documents[b, row] >= 0]
        q, k, v = (side(x[b, real]).unflatten(-1, (4, 4)) for side in (module.heads.q, module.heads.k, module.heads.v))
        for i, row in enumerate(real):
            mixed = torch.zeros(4, 4, dtype=x.dtype)
            for h in range(4):
                keys = [sum(over[0][r][j] * k[j, h] for j in range(len(real))) for r in range(3)]
                values = [sum(over[1][r][j] * v[j, h] for j in range(len(real))) for r in range(3)]
                powers = [math.exp((q[i, h] @ key).item() / 2) for key in keys]
                for power, value in zip(powers, values, strict=True):
                    mixed[h] += power / sum(powers) * value
            assert torch.allclose(actual[b, row], module.heads.o(mixed.flatten()), rtol=0, atol=1e-9)


def test_an_identity_projection_gives_softmax_attention(build_stack: BuildStack, randn: Randn) -> None:
    short, plain = build_stack("linformer", causal=False, rank=8), build_stack("mha", causal=False)
    weights: Any = dict(short.named_parameters())
    with torch.no_grad():
        for path, parameter in plain.named_parameters():
            parameter.copy_(weights[path])
        for side in ("keys", "values"):
            weights[f"layers.0.attention.{side}.weight"].copy_(torch.eye(8, 256))
    x, layout = randn(2, 8, 12), TokenLayout(torch.arange(8).unsqueeze(0))
    assert torch.allclose(short(x, layout).hidden, plain(x, layout).hidden, rtol=0, atol=1e-9)


def test_longer_sequences_are_rejected(build_stack: BuildStack, randn: Randn) -> None:
    stack = build_stack("linformer", causal=False, rank=3)
    with raises_problem(DataError, "position-out-of-range", "257"):
        stack(randn(1, 257, 12), TokenLayout(torch.arange(257).unsqueeze(0)))


def test_shared_keys_and_values_have_one_projection(build_stack: BuildStack) -> None:
    for shared, count in ((True, 1), (False, 2)):
        stack = build_stack("linformer", causal=False, rank=3, shared=shared)
        projections = [path for path, _ in stack.named_parameters() if "heads" not in path]
        assert len(projections) == count
