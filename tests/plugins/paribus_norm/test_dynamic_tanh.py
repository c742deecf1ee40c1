"""Dynamic tanh."""

import math

import pytest
import torch
from torch import Tensor

from paribus_norm.dynamic_tanh import DynamicTanh


def random_input(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 3


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_matches_the_formula_of_the_paper(alpha: float) -> None:
    norm = DynamicTanh(6, alpha=alpha).double()
    norm.alpha.data += 0.25
    norm.weight.data, norm.bias.data = random_input(6), random_input(6) + 1
    x = random_input(3, 6)
    y = norm(x)
    for row in range(3):
        for column in range(6):
            squashed = math.tanh((alpha + 0.25) * x[row, column].item())
            expected = norm.weight[column].item() * squashed + norm.bias[column].item()
            assert y[row, column].item() == pytest.approx(expected, abs=1e-12)


def test_elements_are_squashed_separately() -> None:
    norm, x = DynamicTanh(4).double(), random_input(2, 4)
    torch.testing.assert_close(norm(x)[:, :2], norm(torch.cat([x[:, :2], 100 * x[:, 2:]], dim=-1))[:, :2])


def test_outputs_are_bounded_by_the_gain() -> None:
    assert DynamicTanh(8).double()(random_input(5, 8) * 1e6).abs().max().item() <= 1


def test_every_parameter_has_a_role() -> None:
    assert dict(DynamicTanh(8).named_parameters()).keys() == {"alpha", "weight", "bias"} == DynamicTanh.roles.keys()
