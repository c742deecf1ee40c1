"""FIRE: the paper's formula and relative distances."""

import math

import pytest
import torch
from torch import Tensor

from paribus import Pair, Shape
from paribus_position.functional_interpolation import FunctionalInterpolation


def pair(q: Tensor, k: Tensor, dtype: torch.dtype = torch.float64) -> Pair:
    return Pair(None, None, q, k, 1.0, 4, dtype=dtype)


def build(shape: Shape, *, changed: bool = False, **options: float) -> FunctionalInterpolation:
    position = FunctionalInterpolation(shape, **options).double()  # type: ignore[arg-type]  # whole numbers among them
    torch.manual_seed(0)
    for name, parameter in position.named_parameters():
        if position.roles[name] != "gain":
            torch.nn.init.normal_(parameter)
        else:
            torch.nn.init.constant_(parameter, -1.7 if changed else 1.0)
    return position


@pytest.mark.parametrize("changed", [False, True])
def test_matches_the_formula_and_its_mirror_image_ahead(changed: bool, shape: Shape) -> None:
    position = build(shape, changed=changed, curvature=0.3, threshold=5.0, inner=7)
    c, threshold = (0.3 * 1.7, 5.0 * 1.7) if changed else (0.3, 5.0)
    q, k = torch.tensor([[0, 1, 3, 40], [-2, 4, 9, 2]]), torch.tensor([[0, 2, 50], [1, -3, 9]])
    actual = position.bias(pair(q, k)).detach()
    assert actual.shape == (2, 4, 4, 3)
    for b in range(2):
        for t in range(4):
            for s in range(3):
                i, j = int(q[b, t]), int(k[b, s])
                share = math.log(c * abs(i - j) + 1) / (math.log(c * max(threshold, i, j) + 1) + 1e-6)
                share = share if j <= i else -share
                hidden = [max(0.0, share * slope + start) for slope, start in position.inner.tolist()]
                for head in range(4):
                    expected = sum(w * h for w, h in zip(position.outer.weight[head].tolist(), hidden, strict=True))
                    assert float(actual[b, head, t, s]) == pytest.approx(expected, abs=1e-12)


def test_distances_to_earlier_tokens_match_the_paper(shape: Shape) -> None:
    """Check log(c (i - j) + 1) / log(c max(L, i) + 1), all that a causal stack uses."""
    positions = torch.arange(1500, dtype=torch.float64)
    shares = build(shape).relative_distances(pair(torch.arange(1500).unsqueeze(0), torch.arange(1500).unsqueeze(0)))[0]
    expected = (0.1 * (positions[:, None] - positions)).log1p() / ((0.1 * positions.clamp(min=512)).log1p() + 1e-6)[
        :, None
    ]
    behind = torch.ones(1500, 1500, dtype=torch.bool).tril()
    assert torch.allclose(shares[behind], expected[behind], rtol=0, atol=1e-12)
    assert torch.equal(shares, -shares.T)


def test_relative_distances_are_at_most_1(shape: Shape) -> None:
    positions = torch.tensor([[0, 7, 511, 600, 100_000]])
    shares = build(shape).relative_distances(pair(positions, positions))[0]
    assert (shares.abs() <= 1).all()
    assert shares.diagonal().eq(0).all()
    assert torch.allclose(shares[3:, 0], torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-6)  # the first position


def test_below_the_threshold_only_the_distance_matters(shape: Shape) -> None:
    position, positions = build(shape), torch.arange(8).unsqueeze(0)
    full_output = position.bias(pair(positions, positions))
    assert torch.allclose(position.bias(pair(positions + 500, positions + 500)), full_output, rtol=0, atol=1e-12)
    assert not torch.allclose(position.bias(pair(positions + 900, positions + 900)), full_output, rtol=0, atol=1e-3)


def test_a_threshold_of_0_is_finite(shape: Shape) -> None:
    position, positions = build(shape), torch.arange(-3, 9).unsqueeze(0)
    torch.nn.init.zeros_(position.threshold)
    bias = position.bias(pair(positions, positions))
    bias.sum().backward()
    assert torch.isfinite(bias).all()
    assert all(torch.isfinite(p.grad).all() for p in position.parameters() if p.grad is not None)


@pytest.mark.parametrize(("score_dtype", "expected"), [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)])
def test_precision_is_that_of_scores_and_at_least_float32(
    score_dtype: torch.dtype, expected: torch.dtype, shape: Shape
) -> None:
    positions = torch.arange(3).unsqueeze(0)
    assert build(shape).bias(pair(positions, positions, score_dtype)).dtype == expected


def test_it_has_no_maximum_length(shape: Shape) -> None:
    assert build(shape).position_limit() is None
