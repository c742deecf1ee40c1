"""Sinusoidal positions: the paper's formula, and shifts as rotations."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from paribus import Shape
from paribus_position.sinusoidal import Sinusoidal


def table(shape: Shape, positions: torch.Tensor, base: float = 10_000.0, **options: Any) -> torch.Tensor:
    zeros = torch.zeros(*positions.shape, shape.width, dtype=torch.float64)
    return Sinusoidal(shape, base=base, **options).embed(zeros, positions)


@pytest.mark.parametrize("width", [8, 7, 1])
@pytest.mark.parametrize("base", [10_000.0, 50.0])
def test_matches_the_formula_of_the_paper(width: int, base: float, shape: Shape) -> None:
    positions = torch.tensor([[0, 1, 2, 500], [-2, -1, 0, 1]])
    actual = table(replace(shape, width=width), positions, base)
    for b in range(2):
        for t in range(4):
            for column in range(width):
                angle = int(positions[b, t]) / base ** ((column - column % 2) / width)
                expected = math.cos(angle) if column % 2 else math.sin(angle)
                assert float(actual[b, t, column]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("shift", [1, 17])
def test_a_shift_rotates_every_pair_of_channels(shift: int, shape: Shape) -> None:
    positions = torch.arange(30).unsqueeze(0)
    current, shifted = table(shape, positions), table(shape, positions + shift)
    for pair in range(4):
        angle = shift / 10_000.0 ** (2 * pair / 8)
        sin, cos = current[0, :, 2 * pair], current[0, :, 2 * pair + 1]
        expected = torch.stack(
            [sin * math.cos(angle) + cos * math.sin(angle), cos * math.cos(angle) - sin * math.sin(angle)], -1
        )
        assert torch.allclose(shifted[0, :, 2 * pair : 2 * pair + 2], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("width", [8, 7, 2])
def test_halves_are_all_sines_and_then_all_cosines(width: int, shape: Shape) -> None:
    positions, shape = torch.tensor([[0, 1, 5, -2]]), replace(shape, width=width)
    by_turns, halves = table(shape, positions), table(shape, positions, layout="halves")
    assert torch.equal(halves, torch.cat([by_turns[..., 0::2], by_turns[..., 1::2]], dim=-1))


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("width", [8, 9, 4])
def test_closed_frequencies_end_at_1_over_base(width: int, layout: str, shape: Shape) -> None:
    positions, half = torch.tensor([[0, 1, 2, 500]]), width // 2
    actual = table(replace(shape, width=width), positions, 50.0, layout=layout, closed=True)
    for t, p in enumerate(positions[0].tolist()):
        for i in range(half):
            angle = p * 50.0 ** (-i / (half - 1))
            sine, cosine = (i, half + i) if layout == "halves" else (2 * i, 2 * i + 1)
            assert float(actual[0, t, sine]) == pytest.approx(math.sin(angle), abs=1e-12)
            assert float(actual[0, t, cosine]) == pytest.approx(math.cos(angle), abs=1e-12)
    assert not actual[..., 2 * half :].any()


@pytest.mark.parametrize("width", [8, 7])
def test_matches_ctrl(width: int, shape: Shape) -> None:
    modeling = pytest.importorskip("transformers.models.ctrl.modeling_ctrl")
    expected = modeling.positional_encoding(40, width, torch.float64)
    actual = table(replace(shape, width=width), torch.arange(40).unsqueeze(0), layout="halves")
    assert torch.allclose(actual[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("width", [8, 9])
def test_matches_m2m100(width: int, shape: Shape) -> None:
    modeling = pytest.importorskip("transformers.models.m2m_100.modeling_m2m_100")
    reference = modeling.M2M100SinusoidalPositionalEmbedding(40, width, padding_idx=1)
    expected = reference(input_ids=torch.full((1, 30), 5))  # float32
    actual = table(replace(shape, width=width), torch.arange(30).unsqueeze(0), layout="halves", closed=True, offset=2)
    assert torch.allclose(actual, expected.double(), rtol=0, atol=1e-5)


def test_a_learned_scale_starts_at_1_over_the_root_of_the_width(shape: Shape) -> None:
    position, positions = Sinusoidal(shape, scale="learned").double(), torch.arange(5).unsqueeze(0)
    assert position.gain is not None
    for gain in (1.0, -2.5):
        torch.nn.init.constant_(position.gain, gain)
        actual = position.embed(torch.zeros(1, 5, 8, dtype=torch.float64), positions)
        assert torch.allclose(actual, table(shape, positions) * gain / math.sqrt(8), rtol=0, atol=1e-15)
    actual.sum().backward()
    assert position.gain.grad is not None
    assert float(position.gain.grad) == pytest.approx(float(table(shape, positions).sum()) / math.sqrt(8))
    assert position.roles["gain"] == "gain"  # gains start at 1


def test_the_dtype_of_the_input_is_preserved(shape: Shape) -> None:
    x = torch.randn(2, 3, 8)
    actual = Sinusoidal(shape).embed(x, torch.arange(3).unsqueeze(0))
    assert actual.dtype == x.dtype
    assert torch.equal(actual, x + table(shape, torch.arange(3).unsqueeze(0)).float())


def test_it_has_no_parameters_and_no_maximum_length(shape: Shape) -> None:
    assert list(Sinusoidal(shape).parameters()) == []
    assert Sinusoidal(shape).position_limit() is None
