"""Additive and perceptron scores, compared with loops over the papers' formulas."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from paribus import Load, Memory, ScoreOptions, Shape, Stack, TokenLayout
from paribus_attention import additive_scores, attention

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
Vector = list[float]
KINDS: dict[str, dict[str, Any]] = {
    "additive": {"name": "additive"},
    "perceptron": {"name": "mlp-score", "hidden": 3},
    "perceptron as wide as a head": {"name": "mlp-score"},
}
kinds = pytest.mark.parametrize("kind", KINDS)
PACKED = TokenLayout(torch.tensor([[0, 1, 2, 0, 1, 2]]), torch.tensor([[0, 0, 0, 1, 1, 1]]))


def ramp(length: int) -> TokenLayout:
    return TokenLayout(torch.arange(length).unsqueeze(0))


def attention_of(stack: Stack, crosses: bool = False) -> Any:
    layer: Any = stack.layers[0]
    return layer.cross if crosses else layer.attention


def score(module: Any, head: int, query: Vector, key: Vector) -> float:
    """Score a query and a key: v · tanh(q + k), or v · tanh(W [q; k] + b)."""
    outer: Vector = module.outer[head].tolist()
    if not hasattr(module, "inner"):
        return sum(weight * math.tanh(a + b) for weight, a, b in zip(outer, query, key, strict=True))
    hidden = len(outer)
    layout: list[Vector] = module.inner.weight[head * hidden : (head + 1) * hidden].tolist()
    biases: Vector = module.inner.bias[head * hidden : (head + 1) * hidden].tolist()
    inner = [
        math.tanh(sum(a * b for a, b in zip(row, query + key, strict=True)) + bias)
        for row, bias in zip(layout, biases, strict=True)
    ]
    return sum(a * b for a, b in zip(outer, inner, strict=True))


def loop_reference(module: Any, x: Tensor, requested: Tensor, sees: Callable[[int, int], bool], scale: float) -> Tensor:
    """Attend from one sequence, (T, 12), to (S, 12)."""
    heads = module.heads
    q = heads.q(x).view(len(x), 4, 4).tolist()
    k, v = (side(requested).view(len(requested), 4, 4).tolist() for side in (heads.k, heads.v))
    mixed = torch.zeros(len(x), 4, 4, dtype=x.dtype)
    for i in range(len(x)):
        for h in range(4):
            powers = {
                j: math.exp(score(module, h, q[i][h], k[j][h]) * scale) for j in range(len(requested)) if sees(i, j)
            }
            for j, power in powers.items():
                mixed[i, h] += power / sum(powers.values()) * torch.tensor(v[j][h], dtype=x.dtype)
    output: Tensor = heads.o(mixed.flatten(1))
    return output


@pytest.mark.covering
@kinds
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
@pytest.mark.parametrize("scaled", [True, False], ids=["scaled", "as it is"])
@pytest.mark.parametrize("layout", [ramp(6), PACKED], ids=["plain", "packed"])
def test_matches_a_loop_implementation(
    kind: str, causal: bool, scaled: bool, layout: TokenLayout, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(**KINDS[kind], causal=causal, scores=ScoreOptions(scaled=scaled))
    x = randn(2, 6, 12)
    documents = [0] * 6 if layout.documents is None else layout.documents[0].tolist()

    def sees(i: int, j: int) -> bool:
        return documents[i] == documents[j] and not (causal and j > i)

    expected = torch.stack(
        [loop_reference(attention_of(stack), item, item, sees, 0.5 if scaled else 1.0) for item in x]
    )
    assert torch.allclose(stack(x, layout).hidden, expected, rtol=0, atol=1e-9)


@kinds
def test_cross_attention_matches_a_loop_implementation(kind: str, build_stack: BuildStack, randn: Randn) -> None:
    stack = build_stack(**KINDS[kind], memory_width=10)
    x, memory = randn(2, 3, 12), randn(2, 7, 10, seed=1)
    expected = torch.stack(
        [
            loop_reference(attention_of(stack, True), *item, lambda i, j: True, 0.5)
            for item in zip(x, memory, strict=True)
        ]
    )
    assert torch.allclose(stack(x, ramp(3), Memory(memory, ramp(7))).hidden, expected, rtol=0, atol=1e-9)


@kinds
@pytest.mark.parametrize("limit", [1, 400, 1500])
def test_any_block_size_gives_the_same_scores_and_gradients(
    kind: str, limit: int, build_stack: BuildStack, randn: Randn, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, x = build_stack(**KINDS[kind]), randn(2, 7, 12)
    full_output = stack(x, ramp(7)).hidden
    expected = torch.autograd.grad(full_output.sin().sum(), list(stack.parameters()))
    monkeypatch.setattr(additive_scores, "MAX_SUMS", limit)
    blocks = stack(x, ramp(7)).hidden
    assert torch.allclose(blocks, full_output, rtol=0, atol=1e-12)
    for actual, reference in zip(
        torch.autograd.grad(blocks.sin().sum(), list(stack.parameters())), expected, strict=True
    ):
        assert torch.allclose(actual, reference, rtol=0, atol=1e-12)
    with torch.no_grad():
        assert torch.allclose(stack(x, ramp(7)).hidden, full_output, rtol=0, atol=1e-12)


def test_no_tensor_of_all_sums_is_saved(randn: Randn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(additive_scores, "MAX_SUMS", 1000)
    q, k, outer = randn(1, 2, 30, 8).requires_grad_(), randn(1, 2, 25, 8), randn(2, 8)
    largest = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scores = additive_scores.additive_scores(q, k, outer)
    assert scores.shape == (1, 2, 30, 25)
    assert largest < 2 * 30 * 25 * 8


@kinds
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
def test_cost_matches_the_torch_flop_counter(kind: str, causal: bool, build_stack: BuildStack) -> None:
    options = {key: value for key, value in KINDS[kind].items() if key != "name"}
    shape = Shape(12, 4, 4, 64, 11, 1, causal=causal, memory_width=10)
    module = attention()[KINDS[kind]["name"]](shape, **options)
    stack = build_stack(**KINDS[kind], causal=causal, memory_width=10).to("meta")
    x, layout = (
        torch.zeros(1, 20, 12, device="meta", dtype=torch.float64),
        TokenLayout(torch.arange(20).view(1, -1).to("meta")),
    )
    hidden = torch.zeros(1, 30, 10, device="meta", dtype=torch.float64)
    with FlopCounterMode(display=False) as counter:
        stack(x, layout, Memory(hidden, TokenLayout(torch.arange(30).view(1, -1).to("meta"))))
    assert module.cost(Load(20, 20, memory=30)).flops == counter.get_total_flops()


def test_a_perceptron_that_adds_query_and_key_is_additive_attention(build_stack: BuildStack, randn: Randn) -> None:
    perceptron, additive = build_stack("mlp-score"), build_stack("additive")
    shared = {path: tensor for path, tensor in perceptron.state_dict().items() if "inner" not in path}
    additive.load_state_dict(shared)
    with torch.no_grad():
        attention_of(perceptron).inner.weight.copy_(torch.eye(4).repeat(4, 2))
        attention_of(perceptron).inner.bias.zero_()
    x = randn(2, 6, 12)
    assert torch.allclose(perceptron(x, ramp(6)).hidden, additive(x, ramp(6)).hidden, rtol=0, atol=1e-12)
