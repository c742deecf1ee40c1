"""Two-layer feed-forward, compared with loops and closed forms."""

import math

import pytest
import torch

from paribus import Shape
from paribus_feedforward.multi_layer_perceptron import MultiLayerPerceptron


def loop_reference(mlp: MultiLayerPerceptron, row: list[float], *, bias: bool) -> list[float]:
    inner: list[float] = []
    for f in range(mlp.inner_width):
        total = mlp.inner.bias[f].item() if bias else 0.0
        for d, value in enumerate(row):
            total += value * mlp.inner.weight[f, d].item()
        inner.append(total * 0.5 * (1 + math.erf(total / math.sqrt(2))))
    outer: list[float] = []
    for d in range(len(row)):
        total = mlp.outer.bias[d].item() if bias else 0.0
        for f, value in enumerate(inner):
            total += value * mlp.outer.weight[d, f].item()
        outer.append(total)
    return outer


@pytest.mark.parametrize("bias", [True, False])
def test_matches_its_formula(shape: Shape, bias: bool) -> None:
    mlp = MultiLayerPerceptron(shape, inner=5, bias=bias).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    y, auxiliary = mlp(x)
    expected = [[loop_reference(mlp, x[b, t].tolist(), bias=bias) for t in range(3)] for b in range(2)]
    torch.testing.assert_close(y, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)
    assert auxiliary is None


def test_every_matrix_has_a_role(shape: Shape) -> None:
    matrices = {name for name, parameter in MultiLayerPerceptron(shape).named_parameters() if parameter.ndim == 2}
    assert matrices == MultiLayerPerceptron.roles.keys()
