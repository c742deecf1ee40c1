"""Sines and cosines: the paper's formula, and that a shift is a rotation."""

import math
from dataclasses import replace

import pytest
import torch

from paribus import Shape
from paribus_position.sinusoidal import Sinusoidal


def table(shape: Shape, positions: torch.Tensor, base: float = 10_000.0) -> torch.Tensor:
    zeros = torch.zeros(*positions.shape, shape.width, dtype=torch.float64)
    return Sinusoidal(shape, base=base).embed(zeros, positions)


@pytest.mark.parametrize("width", [8, 7, 1])
@pytest.mark.parametrize("base", [10_000.0, 50.0])
def test_it_is_the_papers_formula(width: int, base: float, shape: Shape) -> None:
    positions = torch.tensor([[0, 1, 2, 500], [-2, -1, 0, 1]])
    got = table(replace(shape, width=width), positions, base)
    for b in range(2):
        for t in range(4):
            for column in range(width):
                angle = int(positions[b, t]) / base ** ((column - column % 2) / width)
                wanted = math.cos(angle) if column % 2 else math.sin(angle)
                assert float(got[b, t, column]) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("shift", [1, 17])
def test_a_shift_turns_each_pair_of_columns_whatever_the_position(shift: int, shape: Shape) -> None:
    positions = torch.arange(30).unsqueeze(0)
    here, there = table(shape, positions), table(shape, positions + shift)
    for pair in range(4):
        angle = shift / 10_000.0 ** (2 * pair / 8)
        sin, cos = here[0, :, 2 * pair], here[0, :, 2 * pair + 1]
        wanted = torch.stack(
            [sin * math.cos(angle) + cos * math.sin(angle), cos * math.cos(angle) - sin * math.sin(angle)], -1
        )
        assert torch.allclose(there[0, :, 2 * pair : 2 * pair + 2], wanted, rtol=0, atol=1e-9)


def test_it_is_added_in_the_type_of_the_rows(shape: Shape) -> None:
    x = torch.randn(2, 3, 8)
    got = Sinusoidal(shape).embed(x, torch.arange(3).unsqueeze(0))
    assert got.dtype == x.dtype
    assert torch.equal(got, x + table(shape, torch.arange(3).unsqueeze(0)).float())


def test_it_learns_nothing_and_has_no_end(shape: Shape) -> None:
    assert list(Sinusoidal(shape).parameters()) == []
    assert Sinusoidal(shape).reach() is None
