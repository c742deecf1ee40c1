"""Draws keyed by (seed, epoch, example, name, position): exact values, uniformity and independence."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from paribus import Draw
from paribus.parts.random_draws import order
from paribus.random_keys import key64

WORD = 2**64
UNLIKELY = 1e-4


def rows(count: int, start: int = 0) -> Tensor:
    return torch.arange(start, start + count)


def hashed(number: int) -> int:
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB % WORD
    return number ^ (number >> 31)


def bits(seed: int, epoch: int, index: int, name: str, place: int) -> int:
    """Compute one draw with Python's integers."""
    row = hashed((index * 0x9E3779B97F4A7C15 + key64(seed, epoch, name)) % WORD)
    return hashed((row + place * 0xD1B54A32D192ED03) % WORD)


def uniformity(values: Tensor, bins: int) -> float:
    """Return the p-value of a chi-squared test of uniformity over `bins`."""
    counts = np.bincount(values.flatten().numpy(), minlength=bins)
    return float(stats.chisquare(counts).pvalue)


def correlation_z(x: Tensor, y: Tensor) -> float:
    """Return the z value of the correlation of two samples."""
    together = torch.stack([x.flatten(), y.flatten()]).double()
    correlation: float = torch.corrcoef(together)[0, 1].item()
    return correlation * math.sqrt(x.numel())


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (7, 3), (2**40, -1)])
def test_a_draw_equals_the_hash_of_its_key(seed: int, epoch: int) -> None:
    index = torch.tensor([5, 0, 2**40])
    draw = Draw(seed, epoch, index)
    for row, example in enumerate(index.tolist()):
        for position in range(4):
            expected = bits(seed, epoch, example, "mask", position)
            assert draw.uniform("mask", 4)[row, position] == (expected >> 40) / 2**24
            assert draw.below("mask", 1000, 4)[row, position] == (expected >> 33) * 1000 >> 31


def test_uniform_draws_are_float32_in_0_to_1() -> None:
    values = Draw(0, 0, rows(500)).uniform("x", 1000)
    assert values.dtype is torch.float32
    assert 0 <= values.min() < 1e-4
    assert 1 - 1e-4 < values.max() < 1


@pytest.mark.parametrize("high", [1, 2, 97, 30_000, 2**31])
def test_integer_draws_are_below_their_limit(high: int) -> None:
    values = Draw(0, 0, rows(50)).below("x", high, 100)
    assert values.dtype is torch.int64
    assert values.min() >= 0
    assert values.max() < high
    assert values.max() > 0.9 * high - 1


@pytest.mark.parametrize("bins", [64, 1000])
def test_draws_are_uniform(bins: int) -> None:
    draw = Draw(1, 2, rows(1000))
    assert uniformity((draw.uniform("x", 500) * bins).long(), bins) > UNLIKELY
    assert uniformity(draw.below("x", bins, 500), bins) > UNLIKELY


def test_the_last_bits_of_a_draw_are_uniform() -> None:
    assert uniformity((Draw(1, 2, rows(1000)).uniform("x", 500) * 2**24).long() % 256, 256) > UNLIKELY


def test_draws_are_uniform_at_every_position() -> None:
    draw = Draw(0, 0, rows(20_000)).uniform("x", 4)
    for place in range(4):
        assert uniformity((draw[:, place] * 50).long(), 50) > UNLIKELY


@pytest.mark.parametrize("step", [1, 2, 64])
def test_neighbouring_draws_are_independent(step: int) -> None:
    values = Draw(0, 0, rows(600)).uniform("x", 600)
    assert abs(correlation_z(values[:, :-step], values[:, step:])) < 4
    assert abs(correlation_z(values[:-step], values[step:])) < 4
    for left, right in ((values[:, :-step], values[:, step:]), (values[:-step], values[step:])):
        assert uniformity((left * 16).long() * 16 + (right * 16).long(), 256) > UNLIKELY


def test_draws_of_other_names_epochs_and_seeds_are_independent() -> None:
    def sample(name: str, seed: int, epoch: int) -> Tensor:
        return Draw(seed, epoch, rows(300)).uniform(name, 300)

    reference = sample("x", 0, 0)
    other_samples = [sample("y", 0, 0), sample("x", 0, 1), sample("x", 1, 0), sample("x", 2**32, 0), sample("x", 0, -1)]
    for other_sample in other_samples:
        assert not torch.equal(reference, other_sample)
        assert abs(correlation_z(reference, other_sample)) < 4
        assert uniformity((reference * 16).long() * 16 + (other_sample * 16).long(), 256) > UNLIKELY


@pytest.mark.thorough
def test_draws_of_a_million_examples_are_distinct() -> None:
    values = Draw(0, 0, rows(1_000_000)).below("x", 2**31, 2)
    assert len(np.unique((values[:, 0] * 2**31 + values[:, 1]).numpy())) == 1_000_000


def test_a_longer_draw_starts_with_the_shorter_one() -> None:
    draw = Draw(0, 0, rows(8))
    assert torch.equal(draw.uniform("x", 512)[:, :77], draw.uniform("x", 77))
    assert torch.equal(draw.below("x", 9, 512)[:, :77], draw.below("x", 9, 77))


def test_draws_of_an_example_do_not_depend_on_the_batch() -> None:
    whole = Draw(3, 1, rows(64)).uniform("x", 33)
    shuffled = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Draw(3, 1, shuffled).uniform("x", 33), whole[shuffled])
    assert torch.equal(torch.cat([Draw(3, 1, rows(1, i)).uniform("x", 33) for i in range(64)]), whole)


def test_repeated_draws_are_equal_and_the_index_is_unchanged() -> None:
    index = rows(5, 3)
    draw = Draw(0, 0, index)
    assert torch.equal(draw.uniform("x", 9), draw.uniform("x", 9))
    assert torch.equal(index, rows(5, 3))


def test_each_epoch_has_its_own_permutation() -> None:
    orders = [order(0, 0, 1000), order(0, 1, 1000), order(1, 0, 1000)]
    assert all(sorted(permutation) == list(range(1000)) for permutation in orders)
    assert np.array_equal(order(0, 0, 1000), orders[0])
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert np.mean(orders[i] == orders[j]) < 0.02


@pytest.mark.parametrize("count", [7, 32, 100])
@pytest.mark.parametrize("start", [0, 96, 12_345])
def test_spread_draws_of_successive_places_cover_the_interval_evenly(count: int, start: int) -> None:
    shuffled = torch.from_numpy(order(0, 1, 20_000))[start : start + count]
    values = Draw(3, 1, shuffled, places=rows(count, start)).spread("time").sort().values
    assert (values - (torch.arange(count) + 0.5) / count).abs().max() < 2 / count


def test_a_spread_draw_is_uniform_over_seeds_and_the_same_in_any_batch() -> None:
    values = torch.stack([Draw(seed, 0, rows(2)).spread("time") for seed in range(2000)])
    assert uniformity((values[:, 1] * 10).long(), 10) > UNLIKELY
    whole = Draw(0, 2, rows(50)).spread("time")
    assert torch.equal(Draw(0, 2, rows(5, 40), places=rows(5, 20)).spread("time"), whole[20:25])
    assert not torch.equal(Draw(0, 3, rows(50)).spread("time"), whole)
