"""Unprojected scores, compared with loops over Luong's `dot` and `general`."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import Memory, ScoreOptions, Shape, Stack, TokenLayout
from paribus.kernels import KERNELS
from paribus_attention import attention

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
names = pytest.mark.parametrize("name", ["dot", "bilinear"])
sides = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
PACKED = TokenLayout(torch.tensor([[0, 1, 2, 0, 1, 2]]), torch.tensor([[0, 0, 0, 1, 1, 1]]))


def ramp(length: int) -> TokenLayout:
    return TokenLayout(torch.arange(length).unsqueeze(0))


def attention_of(stack: Stack, crosses: bool = False) -> Any:
    layer: Any = stack.layers[0]
    return layer.cross if crosses else layer.attention


def loop_reference(module: Any, x: Tensor, requested: Tensor, sees: Callable[[int, int], bool], scale: float) -> Tensor:
    """Attend from one sequence, (T, 16), to (S, 16), by h_t · h_s or h_t W h_s of each head's slice."""
    heads = module.heads
    queries = (heads.q(x) if heads.projects_queries else x).tolist()
    v = heads.v(requested).view(len(requested), 4, 4)
    mixed = torch.zeros(len(x), 4, 4, dtype=x.dtype)
    for i, query in enumerate(queries):
        for h in range(4):
            columns = range(h * 4, h * 4 + 4)
            powers = {
                j: math.exp(sum(query[c] * key[c] for c in columns) * scale)
                for j, key in enumerate(requested.tolist())
                if sees(i, j)
            }
            for j, power in powers.items():
                mixed[i, h] += power / sum(powers.values()) * v[j, h]
    output: Tensor = heads.o(mixed.flatten(1))
    return output


@pytest.mark.covering
@names
@sides
@pytest.mark.parametrize("scaled", [True, False], ids=["scaled", "as it is"])
@pytest.mark.parametrize("layout", [ramp(6), PACKED], ids=["plain", "packed"])
def test_matches_a_loop_implementation(
    name: str, causal: bool, scaled: bool, layout: TokenLayout, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(name, causal=causal, width=16, scores=ScoreOptions(scaled=scaled))
    x = randn(2, 6, 16)
    documents = [0] * 6 if layout.documents is None else layout.documents[0].tolist()

    def sees(i: int, j: int) -> bool:
        return documents[i] == documents[j] and not (causal and j > i)

    expected = torch.stack(
        [loop_reference(attention_of(stack), item, item, sees, 0.5 if scaled else 1.0) for item in x]
    )
    assert torch.allclose(stack(x, layout).hidden, expected, rtol=0, atol=1e-9)


@names
def test_cross_attention_matches_a_loop_implementation(name: str, build_stack: BuildStack, randn: Randn) -> None:
    stack = build_stack(name, width=16, memory_width=16)
    x, memory = randn(2, 3, 16), randn(2, 7, 16, seed=1)
    expected = torch.stack(
        [
            loop_reference(attention_of(stack, True), *item, lambda i, j: True, 0.5)
            for item in zip(x, memory, strict=True)
        ]
    )
    assert torch.allclose(stack(x, ramp(3), Memory(memory, ramp(7))).hidden, expected, rtol=0, atol=1e-9)


@names
def test_matches_mha_with_identity_projections(name: str, build_stack: BuildStack, randn: Randn) -> None:
    actual, plain = build_stack(name, "rope", width=16), build_stack("mha", "rope", width=16)
    heads = attention_of(plain).heads
    with torch.no_grad():
        for side in (heads.q, heads.k):
            side.weight.copy_(torch.eye(16))
            side.bias.zero_()
    missing, unexpected = plain.load_state_dict(actual.state_dict(), strict=False)
    assert unexpected == []
    assert {path.split(".")[-2] for path in missing} == ({"k"} if name == "bilinear" else {"q", "k"})
    x = randn(2, 8, 16)
    assert torch.allclose(actual(x, ramp(8)).hidden, plain(x, ramp(8)).hidden, rtol=0, atol=1e-12)


@names
@sides
def test_fused_kernels_agree(name: str, causal: bool, build_stack: BuildStack, randn: Randn) -> None:
    fast, readable = (
        build_stack(name, "rope", causal=causal, width=16, kernels=item) for item in (KERNELS, KERNELS[-1:])
    )
    assert fast.kernels() == ("sdpa",)
    x = randn(2, 8, 16)
    assert torch.allclose(fast(x, ramp(8)).hidden, readable(x, ramp(8)).hidden, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "shape", "whose", "columns"),
    [
        ("dot", Shape(12, 4, 4, 64, 11, 1), "keys", 12),
        (
            "bilinear",
            Shape(16, 4, 4, 64, 11, 1, memory_width=10),
            "keys",
            10,
        ),
        (
            "dot",
            Shape(12, 4, 4, 64, 11, 1, memory_width=16),
            "queries",
            12,
        ),
    ],
)
def test_widths_other_than_heads_times_head_width_are_rejected(
    name: str, shape: Shape, whose: str, columns: int
) -> None:
    with pytest.raises(ValueError, match=f"{whose} are not projected.* = 16, got {columns}"):
        attention()[name](shape)


def test_a_projected_query_may_have_another_width() -> None:
    module: Any = attention()["bilinear"](Shape(12, 4, 4, 64, 11, 1, memory_width=16))
    assert module.heads.q.weight.shape == (16, 12)
