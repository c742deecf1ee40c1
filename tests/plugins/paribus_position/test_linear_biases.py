"""ALiBi: its closed form, on any block of positions."""

import pytest
import torch
from torch import Tensor

from paribus import Pair, Shape
from paribus_position.linear_biases import LinearBiases, slopes


def bias(shape: Shape, q: Tensor, k: Tensor, heads: int = 4, dtype: torch.dtype = torch.float64) -> Tensor:
    return LinearBiases(shape).bias(Pair(None, None, q, k, 1.0, heads, dtype=dtype))


def test_slopes_match_the_paper() -> None:
    assert slopes(1) == [2**-8]
    assert slopes(8) == [2.0**-i for i in range(1, 9)]
    assert slopes(4) == [2**-2, 2**-4, 2**-6, 2**-8]
    assert slopes(16)[:2] == [2**-0.5, 2**-1]
    # 12 heads: the slopes of 8, and every other one of 16
    assert slopes(12) == [*slopes(8), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert slopes(3) == [2**-4, 2**-8, 2**-2]


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 20])
def test_every_head_has_its_own_slope(heads: int) -> None:
    module = slopes(heads)
    assert len(set(module)) == len(module) == heads
    assert all(0 < slope < 1 for slope in module)


def test_scores_fall_by_the_slope_per_position(shape: Shape) -> None:
    actual = bias(shape, torch.arange(7).unsqueeze(0), torch.arange(7).unsqueeze(0))
    assert actual.shape == (1, 4, 7, 7)
    for head, slope in enumerate(slopes(4)):
        for i in range(7):
            for j in range(7):
                assert actual[0, head, i, j] == -slope * abs(i - j)


def test_a_block_of_the_bias_matches_the_whole(shape: Shape) -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [-3, -2, -1, 0, 1, 2, 3]])
    full_output = bias(shape, positions, positions)
    assert full_output.shape == (2, 4, 7, 7)
    assert torch.equal(bias(shape, positions[:, 4:6], positions[:, 1:5]), full_output[:, :, 4:6, 1:5])
    assert torch.equal(bias(shape, positions + 100, positions + 100), full_output)


@pytest.mark.parametrize(("score_dtype", "expected"), [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)])
def test_precision_is_that_of_scores_and_at_least_float32(
    score_dtype: torch.dtype, expected: torch.dtype, shape: Shape
) -> None:
    positions = torch.arange(3).unsqueeze(0)
    assert bias(shape, positions, positions, dtype=score_dtype).dtype == expected


def test_it_has_no_maximum_length(shape: Shape) -> None:
    assert LinearBiases(shape).position_limit() is None
