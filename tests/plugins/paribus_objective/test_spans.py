"""Noise spans of a text, compared with T5's numbers."""

import numpy as np
import pytest
import torch
from scipy import stats

from paribus import Draw
from paribus_objective.spans import NoiseSize, noise_mask, noise_size, random_partition, replace_spans, side_lengths


def draw(count: int) -> Draw:
    return Draw(0, 0, torch.arange(count))


def test_the_example_of_the_t5_paper() -> None:
    assert noise_size(32, 0.25, 2) == NoiseSize(tokens=8, spans=4)


def test_the_lengths_of_t5() -> None:
    assert side_lengths(568, noise_size(568, 0.15, 3.0)) == (512, 114)


@pytest.mark.parametrize(("rate", "mean_span"), [(0.15, 3.0), (0.5, 1.0), (0.9, 1.0), (0.99, 3.0), (0.01, 8.0)])
def test_some_of_a_text_is_noise_and_some_is_not(rate: float, mean_span: float) -> None:
    for length in range(2, 601):
        result = noise_size(length, rate, mean_span)
        assert result.tokens == min(max(round(length * rate), 1), length - 1)
        assert result.spans == min(max(round(result.tokens / mean_span), 1), length - result.tokens)
        assert 1 <= result.spans <= result.tokens < length


@pytest.mark.parametrize(("rate", "mean_span"), [(0.15, 3.0), (0.5, 1.0), (0.9, 2.0)])
@pytest.mark.parametrize("length", [2, 3, 4, 9, 32, 200])
def test_spans_have_the_given_number_and_are_never_adjacent(length: int, rate: float, mean_span: float) -> None:
    size = noise_size(length, rate, mean_span)
    noisy, begins = noise_mask(length, size, draw(50))
    assert not noisy[:, 0].any()
    assert noisy[:, -1].all()
    assert (noisy.sum(1) == size.tokens).all()
    assert (begins.sum(1) == size.spans).all()
    previous = np.pad(noisy, ((0, 0), (1, 0)))[:, :-1]
    assert np.array_equal(begins, noisy & ~previous)


def test_every_partition_is_equally_likely() -> None:
    result = random_partition(6, 3, "x", draw(10_000))
    assert (result.sum(1) == 6).all()
    assert (result >= 1).all()
    ways, counts = np.unique(result, axis=0, return_counts=True)
    assert len(ways) == 10
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize(("length", "count"), [(1, 1), (5, 1), (5, 5)])
def test_partitions_into_one_or_all_parts_are_unique(length: int, count: int) -> None:
    assert random_partition(length, count, "x", draw(3)).tolist() == [[length // count] * count] * 3


def test_spans_have_the_given_mean_length() -> None:
    size = noise_size(512, 0.15, 3.0)
    assert size.tokens / size.spans == pytest.approx(3, abs=0.15)


def test_noise_is_about_equally_likely_everywhere() -> None:
    noisy, _ = noise_mask(100, NoiseSize(15, 5), draw(4000))
    share = noisy.mean(0)
    assert share[20:80].min() > 0.12
    assert share[20:80].max() < 0.18


def test_folding_leaves_a_sentinel_for_each_span() -> None:
    tokens = np.array([[10, 11, 12, 13, 14, 15]])
    removed = np.array([[False, True, True, False, False, True]])
    span_starts = np.array([[False, True, False, False, False, True]])
    replaced, places = replace_spans(tokens, removed, span_starts, np.array([90, 91, 92]))
    assert replaced.tolist() == [[10, 90, 13, 14, 91]]
    assert places.tolist() == [[0, 1, 3, 4, 5]]
