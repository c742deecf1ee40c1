"""Full and dilated convolutions, compared with loops and with torch, and their reach."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor, nn

from paribus import PADDING, Registry, SpecError, Stack, TokenLayout, installed
from paribus.specs import resolved

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
sides = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
gates = pytest.mark.parametrize("gate", [True, False], ids=["gate", "plain"])
DOCUMENTS = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1], [0, PADDING, 0, 1, 1, PADDING, 1, PADDING]])


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed(no_plugins=True)


def ramp(length: int, start: int = 0) -> TokenLayout:
    return TokenLayout(torch.arange(start, start + length).unsqueeze(0))


@pytest.mark.covering
@sides
@gates
@pytest.mark.parametrize("kernel", [2, 3, 4, 9])
@pytest.mark.parametrize("dilation", [1, 2, 5])
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["plain", "packed"])
def test_matches_a_loop_over_tokens(
    causal: bool,
    gate: bool,
    kernel: int,
    dilation: int,
    documents: Tensor | None,
    build_stack: BuildStack,
    randn: Randn,
) -> None:
    stack: Any = build_stack("full-conv", causal=causal, kernel=kernel, dilation=dilation, gate=gate)
    convolution, x = stack.layers[0].attention.convolution, randn(2, 8, 12)
    actual = stack(x, TokenLayout(torch.arange(8).expand(2, -1), documents)).hidden
    before = kernel - 1 if causal else kernel // 2
    for b in range(2):
        numbers = [0] * 8 if documents is None else documents[b].tolist()
        for document in {number for number in numbers if number >= 0}:
            line = [row for row in range(8) if numbers[row] == document]
            for place, row in enumerate(line):
                total = convolution.bias.clone()
                for tap in range(kernel):
                    neighbour = place + (tap - before) * dilation
                    if 0 <= neighbour < len(line):
                        total += convolution.weight[:, 12 * tap : 12 * (tap + 1)] @ x[b, line[neighbour]]
                expected = total[:12] * total[12:].sigmoid() if gate else total
                assert torch.allclose(actual[b, row], expected, rtol=0, atol=1e-9)


@sides
def test_output_and_gradients_equal_those_of_torch(causal: bool, build_stack: BuildStack, randn: Randn) -> None:
    stack: Any = build_stack("full-conv", causal=causal, kernel=5, dilation=3)
    own, x = stack.layers[0].attention.convolution, randn(2, 40, 12).requires_grad_()
    torchs = nn.Conv1d(12, 12, 5, dilation=3, padding=12 if causal else 6).double()
    with torch.no_grad():
        torchs.weight.copy_(own.weight.view(12, 5, 12).transpose(1, 2))
        torchs.bias.copy_(own.bias)  # type: ignore[union-attr]  # it has one
    expected = torchs(x.transpose(1, 2))[..., :40].transpose(1, 2)
    actual = stack(x, ramp(40)).hidden
    assert torch.allclose(actual, expected, rtol=0, atol=1e-12)
    inputs, weights = (
        torch.autograd.grad(y.square().sum(), (x, layer.weight)) for y, layer in ((actual, own), (expected, torchs))
    )
    assert torch.allclose(inputs[0], weights[0], rtol=0, atol=1e-9)
    assert torch.allclose(inputs[1].view(12, 5, 12).transpose(1, 2), weights[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("length", [30, 256], ids=["short", "long"])
def test_decoding_with_the_last_tokens_equals_one_pass(
    chunk: int, length: int, build_stack: BuildStack, randn: Randn
) -> None:
    stack, x = build_stack("full-conv", kernel=4, dilation=5, layers=2, residual=True), randn(2, 28, 12)
    states = stack.start(2, length)
    pieces = [stack(x[:, past : past + chunk], ramp(chunk, past), states=states).hidden for past in range(0, 28, chunk)]
    assert torch.allclose(torch.cat(pieces, dim=1), stack(x, ramp(28)).hidden, rtol=0, atol=1e-12)
    assert [state["attention"]["inputs"].shape for state in states.layers] == [(2, 15, 12)] * 2


def test_the_state_has_no_more_tokens_than_there_are_to_decode(build_stack: BuildStack, randn: Randn) -> None:
    stack, x = build_stack("full-conv", kernel=4, dilation=50), randn(1, 9, 12)
    states = stack.start(1, 9)
    pieces = [stack(x[:, past : past + 3], ramp(3, past), states=states).hidden for past in range(0, 9, 3)]
    assert torch.allclose(torch.cat(pieces, dim=1), stack(x, ramp(9)).hidden, rtol=0, atol=1e-12)
    assert states.layers[0]["attention"]["inputs"].shape == (1, 9, 12)


@pytest.mark.parametrize(
    ("options", "dilations"),
    [
        ({"kernel": 3}, [1, 3, 9, 27, 81, 243, 1, 3]),  # of at most 256 tokens
        ({"kernel": 4}, [1, 4, 16, 64, 1, 4, 16, 64]),  # no token is 256 tokens away
        ({"kernel": 3, "growth": 7}, [1, 7, 49, 1, 7, 49, 1, 7]),
        ({"kernel": 2, "growth": 256}, [1] * 8),
    ],
    ids=["kernel", "power", "growth", "constant"],
)
def test_the_dilation_grows_from_layer_to_layer(
    options: dict[str, Any], dilations: list[int], build_stack: BuildStack
) -> None:
    stack: Any = build_stack("dilated-conv", layers=8, **options)
    assert [layer.attention.convolution.dilation for layer in stack.layers] == dilations


def test_a_layer_of_a_dilated_stack_is_a_full_convolution(build_stack: BuildStack, randn: Randn) -> None:
    dilated: Any = build_stack("dilated-conv", layers=3, kernel=3, gate=True, residual=True)
    full: Any = build_stack("full-conv", kernel=3, dilation=9, gate=True)
    full.layers[0].attention.load_state_dict(dilated.layers[2].attention.state_dict())
    x = randn(2, 40, 12)
    calls: list[Any] = []
    dilated.layers[2].attention.register_forward_hook(lambda module, inputs, output: calls.append((inputs[0], output)))
    dilated(x, ramp(40))
    ((read, written),) = calls
    assert torch.equal(full(read, ramp(40)).hidden, written)


@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_a_causal_stack_of_l_layers_reads_exactly_kernel_to_the_l_tokens(
    kernel: int, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack("dilated-conv", layers=3, kernel=kernel)
    x = randn(1, 100, 12).requires_grad_()
    (gradient,) = torch.autograd.grad(stack(x, ramp(100)).hidden[0, 99].sum(), x)
    assert gradient[0].any(-1).nonzero().flatten().tolist() == [*range(100 - kernel**3, 100)]


def test_layers_with_their_own_dilation_share_no_parameters(registry: Registry) -> None:
    with raises_problem(SpecError, "does-not-fit", "dilated-conv", "dims.groups null"):
        resolved("gpt-tiny", "attention=dilated-conv", "position=none", "dims.groups=1", registry=registry)


def test_a_dilation_is_less_than_the_length(registry: Registry) -> None:
    with raises_problem(SpecError, "out-of-range", "dilation", "129"):
        resolved("gpt-tiny", "attention={name: full-conv, dilation: 129}", "dims.length=128", registry=registry)
