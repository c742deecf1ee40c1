"""Short convolutions of the inner channels of feed-forwards (Canon D)."""

import dataclasses

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor
from torch.nn import functional

import paribus
from paribus import Context, Load, Shape
from paribus.parts.batch import TokenLayout
from paribus_feedforward.gated_linear_unit import GatedLinearUnit
from paribus_feedforward.mixture_of_experts import MixtureOfExperts
from paribus_feedforward.multi_layer_perceptron import MultiLayerPerceptron


def context(*documents: int) -> Context:
    layout = TokenLayout(torch.arange(len(documents)).unsqueeze(0), torch.tensor([documents]))
    return Context((), layout, layout)


def with_neighbours(h: Tensor, weight: Tensor, documents: tuple[int, ...], *, causal: bool) -> Tensor:
    """Return h plus a sum over three tokens of each document, one at a time: (T, F) -> (T, F)."""
    rows = []
    for t in range(len(h)):
        row = h[t].clone()
        for tap, shift in enumerate((-2, -1, 0) if causal else (-1, 0, 1)):
            if 0 <= t + shift < len(h) and documents[t + shift] == documents[t]:
                row = row + weight[:, tap] * h[t + shift]
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("causal", [True, False])
def test_inner_channels_read_neighbours_before_the_activation(causal: bool, shape: Shape) -> None:
    place, documents = dataclasses.replace(shape, causal=causal), (0, 0, 0, 0, 1, 1, 1)
    x = torch.randn(1, 7, 6, dtype=torch.float64)
    for feedforward in (MultiLayerPerceptron(place, kernel=3), GatedLinearUnit(place, kernel=3)):
        feedforward.double()
        for path, parameter in feedforward.named_parameters():
            if path.startswith("convolutions."):
                torch.nn.init.normal_(parameter)

        def project(name: str, module: MultiLayerPerceptron | GatedLinearUnit = feedforward) -> Tensor:
            weight = module.get_parameter(f"convolutions.{name}.weight")
            return with_neighbours(module.get_submodule(name)(x[0]), weight, documents, causal=causal)

        if isinstance(feedforward, GatedLinearUnit):
            hidden = functional.silu(project("gate")) * project("inner")
        else:
            hidden = functional.gelu(project("inner"))
        y, auxiliary = feedforward(x, context(*documents))
        torch.testing.assert_close(y[0], feedforward.outer(hidden), atol=1e-12, rtol=0)
        assert auxiliary is None


@pytest.mark.parametrize("name", ["mlp", "glu"])
@pytest.mark.parametrize("override", ["position=rope", "placement=canon", "dims.loops=2"])
def test_decoding_step_by_step_equals_one_pass(name: str, override: str) -> None:
    model = paribus.assemble(paribus.spec("gpt-tiny", f"feedforward={{name: {name}, kernel: 4}}", override)).double()
    tokens = torch.randint(0, 200, (2, 9))
    states = model.start(2, 9)
    steps = [model.hidden(chunk, states) for chunk in tokens.split([4, 1, 3, 1], dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), model.hidden(tokens), atol=1e-10, rtol=0)


def test_the_decoding_state_has_the_declared_size(shape: Shape) -> None:
    for feedforward in (MultiLayerPerceptron(shape, kernel=4), GatedLinearUnit(shape, kernel=4)):
        stored = sum(state.numel() for state in feedforward.start(1, torch.empty(0)).values())
        assert stored == feedforward.cost(Load(queries=1, keys=8)).state > 0
    assert MultiLayerPerceptron(shape).start(1, torch.empty(0)) == {}


def test_experts_read_no_neighbours(shape: Shape) -> None:
    for parts in ({"expert": "kernel"}, {"shared": "kernel"}):
        options = {name: lambda shape: MultiLayerPerceptron(shape, kernel=4) for name in parts}
        with pytest.raises(ValueError, match="`kernel` of experts"):
            MixtureOfExperts(shape, **{"expert": MultiLayerPerceptron, **options})  # type: ignore[arg-type]  # factories
    spec = paribus.spec("gpt-tiny", "feedforward={name: moe, expert: {name: mlp, kernel: 4}}")
    with raises_problem(paribus.SpecError, "component-error", "feedforward"):
        paribus.assemble(spec)


@pytest.mark.parametrize("preset", ["xlnet-tiny", "deberta-tiny"])
def test_tokens_without_neighbours_are_refused(preset: str) -> None:
    with raises_problem(paribus.SpecError, "does-not-fit", "feedforward.kernel"):
        paribus.spec(preset, "feedforward.kernel=4")
