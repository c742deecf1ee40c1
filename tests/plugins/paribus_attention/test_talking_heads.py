"""Talking-heads attention, compared with loops over the paper's sums."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import Memory, Stack, TokenLayout

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
SLOPES = [2.0 ** (-8 * (head + 1) / 4) for head in range(4)]
PACKED = TokenLayout(torch.tensor([[0, 1, 2, 0, 1, 2]]), torch.tensor([[0, 0, 0, 1, 1, 1]]))


def attention_of(stack: Stack, crosses: bool = False) -> Any:
    layer: Any = stack.layers[0]
    return layer.cross if crosses else layer.attention


def loop_reference(module: Any, x: Tensor, layout: TokenLayout, causal: bool, position_name: str) -> Tensor:
    """Attend over one sequence, (T, 12): J = q·k, L = sum J P, W = softmax(L + bias), U = sum W P'."""
    heads, length = module.heads, len(x)
    q, k, v = (side(x).view(length, 4, 4).tolist() for side in (heads.q, heads.k, heads.v))
    map_before, map_after = module.before.tolist(), module.after.tolist()
    positions = layout.positions[0].tolist()
    documents = [0] * length if layout.documents is None else layout.documents[0].tolist()
    mixed = torch.zeros(length, 4, 4, dtype=x.dtype)
    for i in range(length):
        visible = [j for j in range(length) if documents[i] == documents[j] and not (causal and j > i)]
        raw = {
            (g, j): sum(a * b for a, b in zip(q[i][g], k[j][g], strict=True)) / math.sqrt(4)
            for g in range(4)
            for j in visible
        }
        weights: dict[tuple[int, int], float] = {}
        for h in range(4):
            scores = {j: sum(map_before[h][g] * raw[g, j] for g in range(4)) for j in visible}
            if position_name == "alibi":
                scores = {j: score - SLOPES[h] * abs(positions[i] - positions[j]) for j, score in scores.items()}
            total = sum(math.exp(score) for score in scores.values())
            weights |= {(h, j): math.exp(score) / total for j, score in scores.items()}
        for h in range(4):
            for j in visible:
                weight = sum(map_after[h][g] * weights[g, j] for g in range(4))
                mixed[i, h] += weight * torch.tensor(v[j][h], dtype=x.dtype)
    output: Tensor = heads.o(mixed.flatten(1))
    return output


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
@pytest.mark.parametrize("position_name", ["none", "alibi"])
@pytest.mark.parametrize("layout", [TokenLayout(torch.arange(6).unsqueeze(0)), PACKED], ids=["plain", "packed"])
def test_matches_a_loop_implementation(
    causal: bool, position_name: str, layout: TokenLayout, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack("talking-heads", position_name, causal=causal)
    x = randn(2, 6, 12)
    expected = torch.stack([loop_reference(attention_of(stack), item, layout, causal, position_name) for item in x])
    assert torch.allclose(stack(x, layout).hidden, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("crosses", [False, True], ids=["itself", "a memory"])
def test_identity_maps_give_mha(crosses: bool, build_stack: BuildStack, randn: Randn) -> None:
    options = {"memory_width": 10} if crosses else {}
    talking, plain = (build_stack(name, "rope", **options) for name in ("talking-heads", "mha"))
    with torch.no_grad():
        for talk in (attention_of(talking, crosses).before, attention_of(talking, crosses).after):
            talk.copy_(torch.eye(4))
    plain.load_state_dict({path: tensor for path, tensor in talking.state_dict().items() if "heads" in path})
    memory = Memory(randn(2, 5, 10, seed=1), TokenLayout(torch.arange(5).unsqueeze(0))) if crosses else None
    x, layout = randn(2, 8, 12), TokenLayout(torch.arange(8).unsqueeze(0))
    actual, expected = talking(x, layout, memory).hidden, plain(x, layout, memory).hidden
    assert torch.allclose(actual, expected, rtol=0, atol=1e-12)


def test_a_permutation_before_is_undone_by_its_inverse_after(build_stack: BuildStack, randn: Randn) -> None:
    talking, plain = build_stack("talking-heads"), build_stack("mha")
    turned = torch.eye(4)[[2, 0, 3, 1]]
    with torch.no_grad():
        attention_of(talking).before.copy_(turned)
        attention_of(talking).after.copy_(turned.T)
    plain.load_state_dict({path: tensor for path, tensor in talking.state_dict().items() if "heads" in path})
    x, layout = randn(2, 8, 12), TokenLayout(torch.arange(8).unsqueeze(0))
    assert torch.allclose(talking(x, layout).hidden, plain(x, layout).hidden, rtol=0, atol=1e-12)


def test_captured_weights_are_those_of_the_values(build_stack: BuildStack, randn: Randn) -> None:
    stack = build_stack("talking-heads", causal=False)
    x, layout = randn(2, 8, 12), TokenLayout(torch.arange(8).unsqueeze(0))
    captured = stack(x, layout, capture=True)
    heads = attention_of(stack).heads
    assert torch.allclose(
        heads.merge(captured.captured[0]["weights"] @ heads.values(x)), captured.hidden, rtol=0, atol=1e-12
    )
    sums = attention_of(stack).after.sum(1)  # each softmax sums to 1
    assert torch.allclose(
        captured.captured[0]["weights"].sum(-1), sums.view(1, 4, 1).expand(2, 4, 8), rtol=0, atol=1e-12
    )
