"""RoPE, compared with a loop, and its invariants."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

from paribus import Shape, SpecError
from paribus_position.rotary import Rotary

SIDES: tuple[Literal["query", "key"], ...] = ("query", "key")


def rotate(position: Rotary, x: Tensor, positions: Tensor) -> Tensor:
    return position.rotate(x, position.tables(positions, x.shape[-1]), "query")


@pytest.mark.parametrize(("theta", "fraction", "columns"), [(10_000.0, 1.0, 6), (100.0, 1 / 3, 2), (7.0, 2 / 3, 4)])
def test_channels_are_paired_by_halves(theta: float, fraction: float, columns: int, shape: Shape) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    positions = torch.tensor([[0, 1, 2, 3, 40], [-2, -1, 0, 1, 2]])
    expected = x.clone()
    for b in range(2):
        for t in range(5):
            for i in range(columns // 2):
                angle = int(positions[b, t]) * theta ** (-2 * i / columns)
                start, second = x[b, :, t, i], x[b, :, t, i + columns // 2]
                expected[b, :, t, i] = start * math.cos(angle) - second * math.sin(angle)
                expected[b, :, t, i + columns // 2] = second * math.cos(angle) + start * math.sin(angle)
    position = Rotary(shape, theta=theta, fraction=fraction)
    for side in SIDES:
        actual = position.rotate(x, position.tables(positions, 6), side)
        assert torch.allclose(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("fraction", [1.0, 2 / 3])
def test_interleaving_only_permutes_channels(fraction: float, shape: Shape) -> None:
    x, positions = torch.randn(2, 3, 5, 6, dtype=torch.float64), torch.tensor([[0, 1, 2, 3, 40], [-2, -1, 0, 1, 2]])
    half = round(6 * fraction) // 2
    by_turns = [*(column for i in range(half) for column in (i, i + half)), *range(2 * half, 6)]
    halves, neighbours = (Rotary(shape, fraction=fraction, interleaved=yes) for yes in (False, True))
    assert torch.equal(rotate(neighbours, x[..., by_turns], positions), rotate(halves, x, positions)[..., by_turns])


def test_interleaving_matches_gpt_j(shape: Shape) -> None:
    modeling = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    x, positions = torch.randn(2, 3, 20, 8), torch.arange(20).unsqueeze(0)
    sin, cos = modeling.create_sinusoidal_positions(20, 8).expand(2, -1, -1).chunk(2, dim=-1)
    expected = modeling.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2)
    assert torch.allclose(rotate(Rotary(shape, interleaved=True), x, positions), expected, rtol=0, atol=1e-5)


def test_scores_depend_on_distance(shape: Shape) -> None:
    q, k = torch.randn(2, 1, 3, 5, 6, dtype=torch.float64).unbind()
    near, far = torch.arange(5).unsqueeze(0), torch.arange(5).unsqueeze(0) + 1234
    position = Rotary(shape)
    scores = [
        rotate(position, q, positions) @ rotate(position, k, positions).transpose(-1, -2) for positions in (near, far)
    ]
    assert torch.allclose(scores[0], scores[1], rtol=0, atol=1e-9)
    changed = rotate(position, q, near) @ rotate(position, k, far).transpose(-1, -2)
    assert not torch.allclose(scores[0], changed, rtol=0, atol=1e-3)


def test_rotation_preserves_norms_and_the_first_position(shape: Shape) -> None:
    x = torch.randn(1, 3, 5, 6, dtype=torch.float64)
    actual = rotate(Rotary(shape), x, torch.arange(5).unsqueeze(0))
    assert torch.allclose(actual.norm(dim=-1), x.norm(dim=-1), rtol=0, atol=1e-12)
    assert torch.equal(actual[:, :, 0], x[:, :, 0])
    assert all((a != b).any() for a, b in pairwise(actual[0, 0]))


def test_channels_beyond_the_fraction_are_unchanged(shape: Shape) -> None:
    x = torch.randn(1, 3, 5, 6)
    actual = rotate(Rotary(shape, fraction=2 / 3), x, torch.arange(5).unsqueeze(0))
    assert torch.equal(actual[..., 4:], x[..., 4:])
    assert (actual[:, :, 1:, :4] != x[:, :, 1:, :4]).all()


def test_any_width_can_be_rotated(shape: Shape) -> None:
    x = torch.randn(1, 1, 5, 64, dtype=torch.float64)
    wide = Rotary(replace(shape, head_width=64))
    positions = torch.arange(5).unsqueeze(0)
    assert torch.equal(rotate(Rotary(shape), x, positions), rotate(wide, x, positions))


def test_shared_positions_broadcast_over_the_batch(shape: Shape) -> None:
    x = torch.randn(3, 2, 5, 6)
    single, repeated = torch.arange(5).unsqueeze(0), torch.arange(5).expand(3, -1)
    assert torch.equal(rotate(Rotary(shape), x, single), rotate(Rotary(shape), x, repeated))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_angles_are_exact_at_distant_positions(dtype: torch.dtype, shape: Shape) -> None:
    x, positions = torch.ones(1, 1, 1, 6), torch.tensor([[1_000_003]])
    actual = rotate(Rotary(shape), x.to(dtype), positions)
    assert actual.dtype == dtype
    expected = rotate(Rotary(shape), x.double(), positions).to(dtype)
    assert torch.allclose(actual.double(), expected.double(), rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize(
    ("head_width", "fraction", "values"),
    [
        (
            6,
            0.5,
            ("0.5", "6", "3"),
        ),
        (7, 1.0, ("7",)),
        (6, 0.1, ("0.6", "0.333333, 0.666667, 1")),
        (1, 1.0, ("1", "2")),
    ],
)
def test_an_odd_rotated_width_is_rejected(
    head_width: int, fraction: float, values: tuple[str, ...], shape: Shape
) -> None:
    with raises_problem(SpecError, "odd-rotated-width", *values):
        Rotary(replace(shape, head_width=head_width), fraction=fraction)


@pytest.mark.parametrize("head_width", [6, 50, 96])
def test_fractions_in_the_error_are_valid(head_width: int, shape: Shape) -> None:
    shape = replace(shape, head_width=head_width)
    with raises_problem(SpecError, "odd-rotated-width") as refused:
        Rotary(shape, fraction=3 / head_width)
    for fraction in refused.value.problems[0].valid.split(", "):
        Rotary(shape, fraction=float(fraction))


def test_it_has_no_maximum_length(shape: Shape) -> None:
    assert Rotary(shape).position_limit() is None


def test_a_grid_rotates_by_rows_and_columns(shape: Shape) -> None:
    torch.manual_seed(0)
    x, positions = torch.randn(1, 1, 10, 8, dtype=torch.float64), torch.arange(10).unsqueeze(0)
    expected = torch.view_as_complex(torch.stack(x.chunk(2, -1), -1)).clone()
    for place in range(1, 10):  # 0 is the token of the whole image
        row, column = divmod(place - 1, 3)
        angles = torch.tensor([row, row * 0.1, column, column * 0.1], dtype=torch.float64)  # 100^(-2i/4) for i = 0, 1
        expected[:, :, place] *= torch.polar(torch.ones_like(angles), angles)
    position = Rotary(replace(shape, length=10, head_width=8), theta=100.0, grid=True)
    actual = rotate(position, x, positions)
    assert torch.allclose(actual, torch.cat([expected.real, expected.imag], -1), rtol=0, atol=1e-12)
    assert torch.equal(actual[:, :, :2], x[:, :, :2])


def test_scores_of_a_grid_depend_on_rows_and_columns_between(shape: Shape) -> None:
    position = Rotary(replace(shape, length=17, head_width=8), grid=True)
    q, k = (torch.randn(8, dtype=torch.float64).expand(1, 1, 17, 8) for _ in "qk")
    positions = torch.arange(17).unsqueeze(0)
    scores = (rotate(position, q, positions) @ rotate(position, k, positions).mT)[0, 0, 1:, 1:]
    by_offset = scores.view(4, 4, 4, 4)  # row and column of the query, then of the key
    for rows, columns in ((1, 0), (0, 1), (2, 1)):
        inside = by_offset[: 4 - rows, : 4 - columns]
        values = [
            inside[row, column, row + rows, column + columns]
            for row in range(4 - rows)
            for column in range(4 - columns)
        ]
        assert max(values) - min(values) < 1e-12
    assert abs(by_offset[0, 0, 0, 1] - by_offset[0, 0, 1, 0]) > 1e-3


@pytest.mark.parametrize(("length", "valid"), [(16, "10, 17"), (1, "2, 5")])
def test_a_grid_needs_a_square_of_patches(length: int, valid: str, shape: Shape) -> None:
    with pytest.raises(ValueError, match=f"got {length}; valid: {valid}"):
        Rotary(replace(shape, length=length, head_width=8), grid=True)


def test_a_grid_needs_pairs_for_rows_and_columns(shape: Shape) -> None:
    with raises_problem(SpecError, "odd-rotated-width", "divisible by 4", "0.666667"):
        Rotary(replace(shape, length=17, head_width=6), grid=True)
