"""xPos: the paper's formula, its decay, and dependence on distance only."""

import math
from dataclasses import replace

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

from paribus import Shape, SpecError
from paribus_position.extrapolatable import Extrapolatable
from paribus_position.rotary import Rotary


def scores(position: Extrapolatable, q: Tensor, k: Tensor, q_at: Tensor, k_at: Tensor) -> Tensor:
    turned = position.rotate(q, position.tables(q_at, q.shape[-1]), "query")
    return turned @ position.rotate(k, position.tables(k_at, k.shape[-1]), "key").transpose(-1, -2)


@pytest.mark.parametrize(("theta", "gamma", "span"), [(10_000.0, 0.4, 512.0), (50.0, 1.5, 7.0)])
def test_matches_the_formula_of_the_paper(theta: float, gamma: float, span: float, shape: Shape) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 3, 5, 6, dtype=torch.float64).unbind()
    positions = torch.tensor([[0, 1, 2, 3, 40], [-2, -1, 0, 1, 2]])
    actual = scores(Extrapolatable(shape, theta=theta, gamma=gamma, span=span), q, k, positions, positions)
    for b in range(2):
        for t in range(5):
            for s in range(5):
                expected = torch.zeros(3, dtype=torch.float64)
                for i in range(3):
                    zeta = (i / 3 + gamma) / (1 + gamma)
                    separate = int(positions[b, t] - positions[b, s])
                    angle = separate * theta ** (-i / 3)
                    (a, c), (e, g) = (x[b, :, row, [i, i + 3]].unbind(-1) for x, row in ((q, t), (k, s)))
                    same, crossed = a * e + c * g, c * e - a * g
                    expected += zeta ** (separate / span) * (same * math.cos(angle) - crossed * math.sin(angle))
                assert torch.allclose(actual[b, :, t, s], expected, rtol=0, atol=1e-9)


def test_scores_depend_on_distance_and_decay(shape: Shape) -> None:
    q, k = torch.randn(2, 1, 3, 5, 6, dtype=torch.float64).unbind()
    position, positions = Extrapolatable(shape), torch.arange(5).unsqueeze(0)
    near = scores(position, q, k, positions, positions)
    assert torch.allclose(near, scores(position, q, k, positions + 1234, positions + 1234), rtol=0, atol=1e-9)
    first_channel = torch.zeros(1, 1, 1, 6, dtype=torch.float64)
    first_channel[..., 0] = (
        1  # the pair with the largest decay, 0.4 / 1.4 in 512 positions, and an angle of 1 a position
    )
    far = scores(position, first_channel, first_channel, torch.tensor([[512]]), torch.tensor([[0]]))
    assert float(far) == pytest.approx(0.4 / 1.4 * math.cos(512), abs=1e-12)


def test_without_decay_xpos_equals_rope(shape: Shape) -> None:
    x, positions = torch.randn(1, 2, 5, 6, dtype=torch.float64), torch.arange(5).unsqueeze(0)
    position, rope = Extrapolatable(shape, span=1e12), Rotary(shape)
    expected = rope.rotate(x, rope.tables(positions, 6), "query")
    for tables in position.tables(positions, 6):
        assert torch.allclose(
            position.rotate(x, position.tables(positions, 6)._replace(query=tables), "query"), expected
        )


def test_tables_do_not_depend_on_other_positions(shape: Shape) -> None:
    """Cached keys are used with queries of later passes."""
    x, positions = torch.randn(1, 2, 9, 6, dtype=torch.float64), torch.arange(9).unsqueeze(0)
    position = Extrapolatable(shape)
    full_output = position.rotate(x, position.tables(positions, 6), "key")
    for row in range(9):
        alone = position.rotate(x[:, :, row : row + 1], position.tables(positions[:, row : row + 1], 6), "key")
        assert torch.equal(alone, full_output[:, :, row : row + 1])


@pytest.mark.parametrize("start", [0, 20_000])
def test_float32_is_precise_at_long_lengths(start: int, shape: Shape) -> None:
    q, k = torch.randn(2, 1, 3, 64, 6).unbind()
    position, positions = Extrapolatable(shape), torch.arange(start, start + 64).unsqueeze(0)
    single, double = (
        scores(position, q, k, positions, positions),
        scores(position, q.double(), k.double(), positions, positions),
    )
    assert torch.allclose(single.double(), double, rtol=0, atol=1e-5)


def test_the_middle_position_is_not_scaled(shape: Shape) -> None:
    x, position, rope = torch.randn(1, 2, 1, 6), Extrapolatable(replace(shape, length=40)), Rotary(shape)
    positions = torch.tensor([[20]])
    for side in ("query", "key"):
        actual = position.rotate(x, position.tables(positions, 6), "query" if side == "query" else "key")
        assert torch.equal(actual, rope.rotate(x, rope.tables(positions, 6), "query"))


def test_an_odd_head_width_is_rejected(shape: Shape) -> None:
    with raises_problem(SpecError, "odd-rotated-width", "7"):
        Extrapolatable(replace(shape, head_width=7))


def test_it_has_no_maximum_length_and_needs_causal_stacks(shape: Shape) -> None:
    assert Extrapolatable(shape).position_limit() is None
    assert Extrapolatable.traits["visibility"] == "past"
