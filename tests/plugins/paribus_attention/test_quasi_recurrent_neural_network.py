"""QRNN, compared with the paper's equations in a loop and with a geometric series."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import PADDING, Stack, TokenLayout
from paribus_attention.elementwise_scan import CHUNK, scan

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
same = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def layout(length: int, documents: list[int] | None = None) -> TokenLayout:
    return TokenLayout(
        torch.arange(length).unsqueeze(0), None if documents is None else torch.tensor(documents).unsqueeze(0)
    )


def equations(convolution: Any, x: Tensor, kernel: int, pooling: str) -> Tensor:
    """Run section 2 of the paper over the tokens (T, D) of one document: (T, K)."""
    gates = {"f": 2, "fo": 3, "ifo": 4}[pooling]
    weights = convolution.weight.unflatten(1, (kernel, x.shape[1]))  # (G, kernel, D), the current token last
    c = x.new_zeros(len(weights) // gates)
    outputs = []
    for t in range(len(x)):
        gate_inputs = convolution.bias
        for tap in range(kernel):
            source = t - (kernel - 1 - tap)
            if source >= 0:
                gate_inputs = gate_inputs + weights[:, tap] @ x[source]
        z, f, *others = gate_inputs.chunk(gates)
        f = torch.sigmoid(f)
        c = f * c + (torch.sigmoid(others[1]) if pooling == "ifo" else 1 - f) * torch.tanh(z)
        outputs.append(c if pooling == "f" else torch.sigmoid(others[0]) * c)
    return torch.stack(outputs)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
@pytest.mark.parametrize(("kernel", "pooling"), [(2, "f"), (2, "fo"), (3, "ifo")])
def test_matches_the_equations_of_the_paper(
    kernel: int, pooling: str, causal: bool, build_stack: BuildStack, randn: Randn
) -> None:
    stack: Any = build_stack("qrnn", kernel=kernel, pooling=pooling, causal=causal)
    x = randn(1, 8, 12)
    convolutions = stack.layers[0].attention.directions
    expected = equations(convolutions[0], x[0], kernel, pooling)
    if not causal:
        expected = torch.cat([expected, equations(convolutions[1], x[0].flip(0), kernel, pooling).flip(0)], dim=-1)
    actual = stack(x, layout(8)).hidden[0]
    same(actual, expected)
    parameters = list(convolutions.parameters())
    same(*(torch.autograd.grad(y.cos().sum(), parameters) for y in (actual, expected)))


def test_documents_and_padding_stay_apart(build_stack: BuildStack, randn: Randn) -> None:
    """A window reads on across padding, and stops at the start of its document."""
    stack: Any = build_stack("qrnn", kernel=3)
    x, documents = randn(1, 9, 12), [PADDING, 0, 0, PADDING, 0, 1, PADDING, 1, PADDING]
    actual = stack(x, layout(9, documents)).hidden[0]
    for document in (0, 1):
        tokens = [place for place, value in enumerate(documents) if value == document]
        same(actual[tokens], equations(stack.layers[0].attention.directions[0], x[0, tokens], 3, "fo"))


def test_decoding_in_chunks_equals_the_equations(build_stack: BuildStack, randn: Randn) -> None:
    stack: Any = build_stack("qrnn", kernel=4, pooling="ifo")
    x, states, outputs = randn(2, 9, 12), stack.start(2, 9), []
    for start, stop in ((0, 1), (1, 3), (3, 4), (4, 9)):
        positions = TokenLayout(torch.arange(start, stop).unsqueeze(0))
        outputs.append(stack(x[:, start:stop], positions, states=states).hidden)
    for row in range(2):
        expected = equations(stack.layers[0].attention.directions[0], x[row], 4, "ifo")
        same(torch.cat(outputs, dim=1)[row], expected)


def test_constant_gates_give_a_geometric_series(build_stack: BuildStack, randn: Randn) -> None:
    stack: Any = build_stack("qrnn", pooling="f")
    convolution = stack.layers[0].attention.directions[0]
    with torch.no_grad():
        convolution.weight.zero_()
    z, f = convolution.bias.chunk(2)
    powers = torch.sigmoid(f) ** torch.arange(1, 2 * CHUNK + 4, dtype=torch.float64).unsqueeze(1)
    same(stack(randn(1, 2 * CHUNK + 3, 12), layout(2 * CHUNK + 3)).hidden[0], (1 - powers) * torch.tanh(z))


@pytest.mark.parametrize("length", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_the_scan_equals_its_steps(length: int, randn: Randn) -> None:
    factors, terms, state = randn(2, length, 3).sigmoid(), randn(2, length, 3), randn(2, 3)
    factors[:, ::5] = 0  # a new document
    leaves = [tensor.detach().requires_grad_() for tensor in (factors, terms, state)]
    current, steps = leaves[2], []
    for t in range(length):
        current = leaves[0][:, t] * current + leaves[1][:, t]
        steps.append(current)
    expected, actual = torch.stack(steps, dim=1), scan(*leaves)
    same(actual, expected)
    same(*(torch.autograd.grad(y.cos().sum(), leaves) for y in (actual, expected)))
