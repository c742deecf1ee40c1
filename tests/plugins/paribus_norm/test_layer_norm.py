"""Layer normalisation, compared with its formula and with torch."""

import math

import pytest
import torch
from torch import Tensor, nn

from paribus_norm.layer_norm import LayerNorm


def random_input(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3 + 2


def test_outputs_have_mean_0_and_variance_1() -> None:
    y = LayerNorm(16, eps=1e-12).double()(random_input(4, 5, 16))
    torch.testing.assert_close(y.mean(-1), torch.zeros(4, 5, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(y.var(-1, correction=0), torch.ones(4, 5, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.3])
def test_matches_the_formula_of_the_paper(eps: float) -> None:
    norm = LayerNorm(6, eps=eps).double()
    norm.weight.data, norm.bias.data = random_input(6), random_input(6) - 1  # type: ignore[union-attr]  # it has a bias by default
    x = random_input(3, 6)
    y = norm(x)
    for row in range(3):
        values: list[float] = x[row].tolist()
        mean = sum(values) / 6
        variance = sum((value - mean) ** 2 for value in values) / 6
        for column in range(6):
            normalised = (values[column] - mean) / math.sqrt(variance + eps)
            expected = normalised * norm.weight[column].item() + norm.bias[column].item()  # type: ignore[index]  # as above
            assert y[row, column].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_loads_weights_of_torch_and_matches_it(bias: bool) -> None:
    reference = nn.LayerNorm(8, eps=1e-6, bias=bias).double()
    reference.weight.data = random_input(8)
    actual = LayerNorm(8, eps=1e-6, bias=bias).double()
    actual.load_state_dict(reference.state_dict())
    assert torch.equal(actual(random_input(2, 8)), reference(random_input(2, 8)))


def test_bias_is_optional() -> None:
    assert dict(LayerNorm(8, bias=False).named_parameters()).keys() == {"weight"}
    assert dict(LayerNorm(8).named_parameters()).keys() == {"weight", "bias"} == LayerNorm.roles.keys()
