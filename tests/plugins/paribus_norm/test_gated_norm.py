"""Gated norm, compared with its formula."""

import math

import pytest
import torch
from tests.plugins.paribus_norm.test_root_mean_square_norm import random_input
from torch.utils.flop_counter import FlopCounterMode

from paribus import Load
from paribus_norm.gated_norm import GatedNorm


def gated_norm(rank: int) -> GatedNorm:
    norm = GatedNorm(6, rank=rank, eps=0.3).double()
    for index, parameter in enumerate(norm.parameters()):
        parameter.data = random_input(*parameter.shape, 2)[..., index % 2]
    return norm


@pytest.mark.parametrize("rank", [1, 4])
def test_matches_its_formula(rank: int) -> None:
    norm, x = gated_norm(rank), random_input(3, 6)
    y = norm(x)
    for row in range(3):
        root = math.sqrt(sum(value * value for value in x[row].tolist()) / 6 + 0.3)
        normalised = [x[row, d].item() / root * norm.weight[d].item() for d in range(6)]
        inner = [sum(norm.down.weight[r, d].item() * normalised[d] for d in range(6)) for r in range(rank)]
        active = [value / (1 + math.exp(-value)) for value in inner]
        for d in range(6):
            score = sum(norm.up.weight[d, r].item() * active[r] for r in range(rank))
            assert y[row, d].item() == pytest.approx(normalised[d] / (1 + math.exp(-score)), abs=1e-12)


def test_a_gate_of_zeros_halves_the_norm() -> None:
    norm, x = gated_norm(4), random_input(3, 6)
    norm.up.weight.data.zero_()
    expected = torch.nn.functional.rms_norm(x, (6,), norm.weight, 0.3) / 2
    torch.testing.assert_close(norm(x), expected, rtol=0, atol=1e-15)


def test_cost_is_that_of_two_maps() -> None:
    norm = GatedNorm(6, rank=4)
    with FlopCounterMode(display=False) as counter:
        norm(torch.randn(2, 5, 6))
    assert norm.cost(Load(queries=10, keys=10)).flops == counter.get_total_flops() == 2 * 2 * 10 * 6 * 4
