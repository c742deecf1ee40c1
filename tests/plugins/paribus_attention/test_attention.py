"""Multi-head, grouped-query, multi-query and sliding-window attention, with every position."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paribus import PADDING, Attention, Heads, Stack, TokenLayout
from paribus.kernels import KERNELS

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
Vector = list[float]

KINDS: dict[str, dict[str, Any]] = {
    "mha": {"name": "mha"},
    "gqa": {"name": "gqa", "kv_heads": 2},
    "mqa": {"name": "mqa"},
    "restricted": {"name": "restricted", "window": 3},
    "restricted-gqa": {"name": "restricted", "window": 3, "kv_heads": 2},
}
POSITIONS = ("none", "rope", "alibi", "sinusoidal", "learned")
kinds = pytest.mark.parametrize("kind", KINDS)
sides = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
SLOPES = [2.0 ** (-8 * (head + 1) / 4) for head in range(4)]


def layout_of(name: str) -> TokenLayout:
    ramp = torch.arange(8)
    padding_length = torch.tensor([[0], [3]])
    documents = torch.zeros(2, 8, dtype=torch.long)
    return {
        "plain": TokenLayout(ramp.unsqueeze(0)),
        "right": TokenLayout(ramp.expand(2, -1), documents.masked_fill(ramp >= 8 - padding_length, PADDING)),
        "left": TokenLayout(ramp - padding_length, documents.masked_fill(ramp < padding_length, PADDING)),
        "packed": TokenLayout(
            torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 0, 1, 2, 3, 0, 1]]),
            torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1, PADDING, PADDING]]),
        ),
        "restarted": TokenLayout(torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]])),
    }[name]


def attention_of(stack: Stack) -> tuple[Attention, Heads]:
    module: Any = stack.layers[0]
    return module.attention, module.attention.heads


def rotate(vector: Vector, position: int, position_name: str) -> Vector:
    """Rotate one vector by RoPE, a pair of channels at a time."""
    if position_name != "rope":
        return vector
    half = len(vector) // 2
    output = [0.0] * len(vector)
    for i in range(half):
        angle = position * 10_000.0 ** (-2 * i / len(vector))
        start, second = vector[i], vector[i + half]
        output[i] = start * math.cos(angle) - second * math.sin(angle)
        output[i + half] = second * math.cos(angle) + start * math.sin(angle)
    return output


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def loop_reference(
    heads: Heads, x: Tensor, layout: TokenLayout, causal: bool, window: int | None, position_name: str
) -> Tensor:
    """Attend over tokens (B, T, 12), one number at a time."""
    batch, length, width = x.shape[0], x.shape[1], heads.head_width
    q, k, v = ((x @ side.weight.T + side.bias).tolist() for side in (heads.q, heads.k, heads.v))
    merged = torch.zeros(batch, length, heads.heads * width, dtype=x.dtype)
    for b in range(batch):
        positions = layout.positions[min(b, layout.positions.shape[0] - 1)].tolist()
        documents = [0] * length if layout.documents is None else layout.documents[b].tolist()
        for h in range(heads.heads):
            g = h // (heads.heads // heads.kv_heads)
            query_channels, key_channels = slice(h * width, (h + 1) * width), slice(g * width, (g + 1) * width)
            for i in range(length):
                powers: dict[int, float] = {}
                for j in range(length):
                    if (causal and j > i) or documents[i] != documents[j] or documents[j] < 0:
                        continue
                    if window is not None and abs(i - j) >= window:
                        continue
                    query = rotate(q[b][i][query_channels], positions[i], position_name)
                    score = dot(query, rotate(k[b][j][key_channels], positions[j], position_name)) / math.sqrt(width)
                    if position_name == "alibi":
                        score -= SLOPES[h] * abs(positions[i] - positions[j])
                    powers[j] = math.exp(score)
                for j, power in powers.items():
                    merged[b, i, query_channels] += (
                        power / sum(powers.values()) * torch.tensor(v[b][j][key_channels], dtype=x.dtype)
                    )
    return merged @ heads.o.weight.T + heads.o.bias


@pytest.mark.covering
@kinds
@sides
@pytest.mark.parametrize("position_name", ["none", "rope", "alibi"])
@pytest.mark.parametrize("layout", ["plain", "right", "left", "packed", "restarted"])
def test_matches_a_loop_implementation(
    kind: str, causal: bool, position_name: str, layout: str, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(**KINDS[kind], position_name=position_name, causal=causal)
    x = randn(2, 8, 12)
    actual = stack(x, layout_of(layout)).hidden
    expected = loop_reference(
        attention_of(stack)[1], x, layout_of(layout), causal, KINDS[kind].get("window"), position_name
    )
    assert torch.allclose(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.covering
@kinds
@sides
@pytest.mark.parametrize("position_name", ["none", "rope", "alibi"])
def test_all_kernels_agree(kind: str, causal: bool, position_name: str, build_stack: BuildStack, randn: Randn) -> None:
    options = {**KINDS[kind], "position_name": position_name, "causal": causal, "layers": 2}
    fast, readable = build_stack(**options), build_stack(**options, kernels=KERNELS[-1:])
    assert fast.kernels(queries=150) == (("blocked",) * 2 if "restricted" in kind else ("sdpa",) * 2)
    x, padding_length = randn(2, 150, 12), torch.tensor([[0], [40]])
    documents = (torch.arange(150) // 60).expand(2, -1).masked_fill(torch.arange(150) >= 150 - padding_length, PADDING)
    for layout in (
        TokenLayout(torch.arange(150).unsqueeze(0)),
        TokenLayout(torch.arange(150).expand(2, -1) % 60, documents),
    ):
        outputs = [stack(x, layout).hidden for stack in (fast, readable)]
        assert torch.allclose(outputs[0], outputs[1], rtol=0, atol=1e-9)
        grads = [
            torch.autograd.grad(output.sin().sum(), list(stack.parameters()))
            for output, stack in zip(outputs, (fast, readable), strict=True)
        ]
        for actual, reference in zip(*grads, strict=True):
            assert torch.allclose(actual, reference, rtol=0, atol=1e-8)


@sides
@pytest.mark.parametrize(("window", "layers"), [(1, 1), (2, 1), (4, 1), (4, 2), (64, 1)])
def test_a_window_has_the_declared_size(
    causal: bool, window: int, layers: int, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack("restricted", causal=causal, window=window, layers=layers, residual=True)
    x = randn(1, 100, 12)
    layout = TokenLayout(torch.arange(100).unsqueeze(0))
    original = stack(x, layout).hidden
    for touched in (0, 40, 99):
        changed_input = x.clone()
        changed_input[0, touched] += 1
        changed = (stack(changed_input, layout).hidden != original).any(-1)[0].nonzero().flatten().tolist()
        reach = layers * (window - 1)
        assert changed == list(range(touched if causal else max(0, touched - reach), min(100, touched + reach + 1)))


@pytest.mark.parametrize("kind", ["mha", "gqa", "mqa"])  # a window depends on positions itself
@pytest.mark.parametrize("position_name", POSITIONS)
def test_bidirectional_attention_without_positions_is_permutation_equivariant(
    kind: str, position_name: str, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(**KINDS[kind], position_name=position_name, causal=False)
    x, order = randn(1, 8, 12), torch.tensor([3, 1, 7, 0, 2, 6, 5, 4])
    positions = torch.arange(8).unsqueeze(0)
    straight, shuffled = (
        stack(stack.add_positions(layout, positions), TokenLayout(positions)).hidden for layout in (x, x[:, order])
    )
    assert torch.allclose(straight[:, order], shuffled, rtol=0, atol=1e-9) == (position_name == "none")


@pytest.mark.parametrize("name", ["gqa", "restricted"])
def test_gqa_with_all_key_heads_is_mha(name: str, build_stack: BuildStack, randn: Randn) -> None:
    options = {"window": 100} if name == "restricted" else {}
    x, layout = randn(2, 8, 12), layout_of("packed")
    plain, shared = build_stack("mha", "rope"), build_stack(name, "rope", kv_heads=4, **options)
    assert torch.allclose(plain(x, layout).hidden, shared(x, layout).hidden, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "groups", "options"), [("gqa", 2, {"kv_heads": 2}), ("mqa", 1, {})])
def test_gqa_is_mha_with_repeated_weights(
    name: str, groups: int, options: dict[str, int], build_stack: BuildStack, randn: Randn
) -> None:
    shared, plain = build_stack(name, "rope", **options), build_stack("mha", "rope")
    weights = shared.state_dict()
    for key in [key for key in weights if ".k." in key or ".v." in key]:
        weights[key] = weights[key].unflatten(0, (groups, 4)).repeat_interleave(4 // groups, 0).flatten(0, 1)
    plain.load_state_dict(weights)
    x, layout = randn(2, 8, 12), layout_of("left")
    assert torch.allclose(plain(x, layout).hidden, shared(x, layout).hidden, rtol=0, atol=1e-9)


def test_gqa_with_one_key_head_is_mqa(build_stack: BuildStack, randn: Randn) -> None:
    x, layout = randn(2, 8, 12), layout_of("plain")
    outputs = [stack(x, layout).hidden for stack in (build_stack("mqa"), build_stack("gqa", kv_heads=1))]
    assert torch.equal(*outputs)


@pytest.mark.parametrize("kind", ["mha", "gqa", "mqa"])
def test_matches_torch(kind: str, build_stack: BuildStack, randn: Randn) -> None:
    stack = build_stack(**KINDS[kind])
    x = randn(2, 8, 12)
    _, heads = attention_of(stack)
    mixed = functional.scaled_dot_product_attention(
        heads.queries(x), heads.keys(x), heads.values(x), is_causal=True, enable_gqa=True
    )
    assert torch.allclose(stack(x, layout_of("plain")).hidden, heads.merge(mixed), rtol=0, atol=1e-9)
