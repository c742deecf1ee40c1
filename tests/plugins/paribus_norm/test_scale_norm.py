"""Normalisation to one length, compared with its formula."""

import math

import pytest
import torch
from torch import Tensor

from paribus_norm.root_mean_square_norm import RootMeanSquareNorm
from paribus_norm.scale_norm import ScaleNorm


def random_input(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 1


def test_matches_the_formula_of_the_paper() -> None:
    norm = ScaleNorm(6).double()
    norm.length.data += 0.7
    x = random_input(3, 6)
    y = norm(x)
    for row in range(3):
        values: list[float] = x[row].tolist()
        long = math.sqrt(sum(value * value for value in values))
        for column in range(6):
            assert y[row, column].item() == pytest.approx((math.sqrt(6) + 0.7) * values[column] / long, abs=1e-12)


@pytest.mark.parametrize("width", [4, 64])
def test_the_initial_length_is_that_of_root_mean_square_1(width: int) -> None:
    x = random_input(3, width)
    exact = RootMeanSquareNorm(width, eps=1e-30).double()(x)
    torch.testing.assert_close(ScaleNorm(width).double()(x), exact, atol=1e-12, rtol=0)


def test_vectors_shorter_than_eps_are_not_normalised() -> None:
    x = torch.full((1, 4), 1e-7, dtype=torch.float64)
    torch.testing.assert_close(ScaleNorm(4, eps=1e-5).double()(x), x * 2 / 1e-5)


def test_there_is_one_parameter_at_any_width() -> None:
    assert [p.numel() for p in ScaleNorm(64).parameters()] == [1]
    assert dict(ScaleNorm(8).named_parameters()).keys() == ScaleNorm.roles.keys()
