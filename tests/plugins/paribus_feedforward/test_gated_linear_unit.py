"""Gated linear unit, compared with loops and closed forms."""

import math

import pytest
import torch

from paribus import Load, Shape
from paribus_feedforward.activation import ACTIVATIONS, Activation
from paribus_feedforward.gated_linear_unit import GatedLinearUnit
from paribus_feedforward.multi_layer_perceptron import MultiLayerPerceptron


def loop_reference(glu: GatedLinearUnit, row: list[float]) -> list[float]:
    inner: list[float] = []
    for f in range(glu.inner_width):
        gate = sum(value * glu.gate.weight[f, d].item() for d, value in enumerate(row))
        up = sum(value * glu.inner.weight[f, d].item() for d, value in enumerate(row))
        inner.append(gate / (1 + math.exp(-gate)) * up)
    return [sum(value * glu.outer.weight[d, f].item() for f, value in enumerate(inner)) for d in range(len(row))]


def test_silu_gives_swiglu(shape: Shape) -> None:
    glu = GatedLinearUnit(shape, inner=5).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    y, auxiliary = glu(x)
    expected = [[loop_reference(glu, x[b, t].tolist()) for t in range(3)] for b in range(2)]
    torch.testing.assert_close(y, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)
    assert auxiliary is None


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_only_the_gate_is_activated(shape: Shape, activation: Activation) -> None:
    glu = GatedLinearUnit(shape, activation=activation, bias=True).double()
    x = torch.randn(2, 6, dtype=torch.float64)
    gated = ACTIVATIONS[activation](x @ glu.gate.weight.T + glu.gate.bias) * (x @ glu.inner.weight.T + glu.inner.bias)
    torch.testing.assert_close(glu(x)[0], gated @ glu.outer.weight.T + glu.outer.bias, atol=1e-12, rtol=0)


def test_the_default_has_the_parameters_and_cost_of_two_maps() -> None:
    shape = Shape(width=48, heads=2, head_width=24, length=8, vocabulary=11, layers=2)
    three, right = GatedLinearUnit(shape), MultiLayerPerceptron(shape, bias=False)
    assert sum(p.numel() for p in three.parameters()) == sum(p.numel() for p in right.parameters())
    assert three.cost(Load(queries=5, keys=5)) == right.cost(Load(queries=5, keys=5))


def test_every_matrix_has_a_role(shape: Shape) -> None:
    matrices = {name for name, _ in GatedLinearUnit(shape, scales=True).named_parameters()}
    assert matrices == GatedLinearUnit.roles.keys()
