"""Dynamic erf."""

import math

import pytest
import torch
from torch import Tensor

from paribus_norm.dynamic_erf import DynamicErf


def random_input(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 3


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_matches_the_formula_of_the_paper(alpha: float) -> None:
    norm = DynamicErf(6, alpha=alpha).double()
    norm.alpha.data += 0.25
    norm.shift.data -= 0.5
    norm.weight.data, norm.bias.data = random_input(6), random_input(6) + 1
    x = random_input(3, 6)
    y = norm(x)
    for row in range(3):
        for column in range(6):
            squashed = math.erf((alpha + 0.25) * x[row, column].item() - 0.5)
            expected = norm.weight[column].item() * squashed + norm.bias[column].item()
            assert y[row, column].item() == pytest.approx(expected, abs=1e-12)


def test_every_parameter_has_a_role() -> None:
    assert dict(DynamicErf(8).named_parameters()).keys() == DynamicErf.roles.keys()
