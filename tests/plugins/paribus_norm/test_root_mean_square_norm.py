"""Root mean square normalisation, compared with its formula and with torch."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paribus_norm.root_mean_square_norm import RootMeanSquareNorm


def random_input(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 1


@pytest.mark.parametrize("eps", [1e-12, 1e-6, 0.3])
def test_matches_the_formula_of_the_paper(eps: float) -> None:
    norm = RootMeanSquareNorm(6, eps=eps).double()
    norm.weight.data = random_input(6)
    x = random_input(3, 6)
    y = norm(x)
    for row in range(3):
        values: list[float] = x[row].tolist()
        root = math.sqrt(sum(value * value for value in values) / 6 + eps)
        for column in range(6):
            assert y[row, column].item() == pytest.approx(values[column] / root * norm.weight[column].item(), abs=1e-12)


def test_matches_torch() -> None:
    norm = RootMeanSquareNorm(8, eps=1e-5)
    norm.weight.data = random_input(8).float()
    x = random_input(2, 8).float()
    torch.testing.assert_close(norm(x), functional.rms_norm(x, (8,), norm.weight, 1e-5))


def test_the_mean_is_not_removed() -> None:
    torch.testing.assert_close(
        RootMeanSquareNorm(4).double()(torch.full((1, 4), 7.0, dtype=torch.float64)),
        torch.ones(1, 4, dtype=torch.float64),
    )


@pytest.mark.parametrize("scale", [0.5, 8.0])
def test_outputs_do_not_depend_on_scale(scale: float) -> None:
    norm = RootMeanSquareNorm(8, eps=1e-30).double()
    torch.testing.assert_close(norm(random_input(3, 8) * scale), norm(random_input(3, 8)), atol=1e-12, rtol=0)


def test_it_has_a_gain_and_no_bias() -> None:
    assert dict(RootMeanSquareNorm(8).named_parameters()).keys() == {"weight"}


def test_a_zero_centred_gain_is_an_offset_of_1() -> None:
    plain, centred = RootMeanSquareNorm(6).double(), RootMeanSquareNorm(6, zero_centred=True).double()
    x = random_input(3, 6)
    assert centred.offset is not None
    torch.testing.assert_close(centred(x), plain(x), rtol=0, atol=1e-15)
    plain.weight.data = random_input(6)
    centred.offset.data = plain.weight.data - 1
    torch.testing.assert_close(centred(x), plain(x), rtol=0, atol=1e-12)


def test_a_small_offset_counts_in_half_precision() -> None:
    norm = RootMeanSquareNorm(4, zero_centred=True).bfloat16()
    assert norm.offset is not None
    norm.offset.data.fill_(0.003)
    x = random_input(256, 4).bfloat16()
    assert not torch.equal(norm(x), RootMeanSquareNorm(4).bfloat16()(x))
