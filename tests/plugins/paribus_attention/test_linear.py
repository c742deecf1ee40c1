"""Linear attention, compared with loops over the paper's sums and with explicit weights."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import PADDING, Context, Load, Memory, Stack, TokenLayout

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
KINDS: dict[str, dict[str, Any]] = {
    "elu": {},
    "relu": {"features": "relu"},
    "elu-gqa": {"kv_heads": 2},
    "relu-mqa": {"features": "relu", "kv_heads": 1, "bias": False},
}
kinds = pytest.mark.parametrize("kind", KINDS)
sides = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
PACKED = TokenLayout(
    torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 0, 1, 2, 3, 0, 1]]),
    torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1, PADDING, PADDING]]),
)


def phi(features: str, x: list[float]) -> list[float]:
    if features == "relu":
        return [max(value, 0.0) for value in x]
    return [value + 1 if value > 0 else math.exp(value) for value in x]


@pytest.mark.covering
@kinds
@sides
@pytest.mark.parametrize("layout", [TokenLayout(torch.arange(8).unsqueeze(0)), PACKED], ids=["plain", "packed"])
def test_matches_a_loop_implementation(
    kind: str, causal: bool, layout: TokenLayout, build_stack: BuildStack, randn: Randn
) -> None:
    stack: Any = build_stack("linear", causal=causal, **KINDS[kind])
    heads, features = stack.layers[0].attention.heads, KINDS[kind].get("features", "elu")
    x = randn(2, 8, 12)
    actual = stack(x, layout).hidden
    q, k, v = (side(x).unflatten(-1, (-1, 4)).tolist() for side in (heads.q, heads.k, heads.v))
    for b in range(2):
        documents = [0] * 8 if layout.documents is None else layout.documents[b].tolist()
        for i in range(8):
            mixed = torch.zeros(4, 4, dtype=x.dtype)
            for h in range(4):
                g = h // (4 // heads.kv_heads)
                total = 0.0
                for j in range(8):
                    if documents[j] == documents[i] >= 0 and not (causal and j > i):
                        requested, names = phi(features, q[b][i][h]), phi(features, k[b][j][g])
                        weight = sum(a * c for a, c in zip(requested, names, strict=True))
                        total += weight
                        mixed[h] += weight * torch.tensor(v[b][j][g], dtype=x.dtype)
                mixed[h] /= max(total, 1e-6)
            if documents[i] >= 0:
                assert torch.allclose(actual[b, i], heads.o(mixed.flatten()), rtol=0, atol=1e-9)


def explicit_reference(stack: Any, x: Tensor, visible: Tensor) -> Tensor:
    """Attend over (B, T, D) with explicit weights, (T, T) of them."""
    module = stack.layers[0].attention
    q, k, v = module._phi(module.heads.queries(x)), module._phi(module.heads.keys(x)), module.heads.values(x)
    k, v = (side.repeat_interleave(4 // side.shape[1], 1) for side in (k, v))
    weights = (q @ k.transpose(-1, -2)) * visible
    merged: Tensor = module.heads.merge(weights / weights.sum(-1, keepdim=True).clamp_min(1e-6) @ v)
    return merged


@pytest.mark.covering
@kinds
@sides
@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_sums_and_gradients_match_explicit_weights(
    kind: str, causal: bool, length: int, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack("linear", causal=causal, **KINDS[kind])
    x = randn(2, length, 12).requires_grad_()
    documents = (torch.arange(length) // 50).unsqueeze(0)
    for layout in (
        TokenLayout(torch.arange(length).unsqueeze(0)),
        TokenLayout(torch.arange(length).unsqueeze(0), documents),
    ):
        visible = torch.ones(length, length).tril() if causal else torch.ones(length, length)
        if layout.documents is not None:
            visible = visible * (documents == documents.T)
        module = [stack(x, layout).hidden, explicit_reference(stack, x, visible)]
        assert torch.allclose(module[0], module[1], rtol=0, atol=1e-9)
        grads = [torch.autograd.grad(side.sin().sum(), [x, *stack.parameters()]) for side in module]
        for actual, reference in zip(*grads, strict=True):
            assert torch.allclose(actual, reference, rtol=1e-7, atol=1e-8)


def test_the_state_of_a_memory_does_not_depend_on_its_length(build_stack: BuildStack, randn: Randn) -> None:
    stack = build_stack("linear", memory_width=10)
    states = stack.start(1, 4)
    memory = Memory(randn(1, 500, 10), TokenLayout(torch.arange(500).unsqueeze(0)))
    stack(randn(1, 1, 12), TokenLayout(torch.zeros(1, 1).long()), memory, states)
    assert {name: tuple(saved.shape) for name, saved in states.layers[0]["cross"].items()} == {
        "products": (1, 4, 4, 4),
        "features": (1, 4, 4),
    }


@sides
def test_cost_is_linear_in_the_length(causal: bool, build_stack: BuildStack) -> None:
    stack: Any = build_stack("linear", causal=causal)
    cost = stack.layers[0].attention.cost
    assert cost(Load(4096, 4096)).flops == 4 * cost(Load(1024, 1024)).flops
    assert cost(Load(1, 10)).state == cost(Load(1, 10**6)).state


@pytest.mark.thorough
@sides
def test_it_compiles_into_one_graph(causal: bool, build_stack: BuildStack, randn: Randn) -> None:
    stack: Any = build_stack("linear", causal=causal)
    x, layout = randn(2, 100, 12), TokenLayout(torch.arange(100).unsqueeze(0))
    compiled: Any = torch.compile(stack.layers[0].attention, fullgraph=True, backend="eager")
    ctx = Context((), layout, layout)
    assert torch.allclose(compiled(x, ctx), stack(x, layout).hidden, rtol=0, atol=1e-12)
