"""Draws are keyed by (seed, epoch, example, name, place), and look random whichever of these one walks along."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from paribus import Draw
from paribus.keyed import key64
from paribus.parts.draw import order

WORD = 2**64
UNLIKELY = 1e-4


def rows(count: int, first: int = 0) -> Tensor:
    return torch.arange(first, first + count)


def hashed(number: int) -> int:
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB % WORD
    return number ^ (number >> 31)


def bits(seed: int, epoch: int, index: int, name: str, place: int) -> int:
    """One draw with Python's whole numbers, from nothing but its key."""
    row = hashed((index * 0x9E3779B97F4A7C15 + key64(seed, epoch, name)) % WORD)
    return hashed((row + place * 0xD1B54A32D192ED03) % WORD)


def even(values: Tensor, bins: int) -> float:
    """How likely it is that even draws fall into `bins` as unevenly as these."""
    counts = np.bincount(values.flatten().numpy(), minlength=bins)
    return float(stats.chisquare(counts).pvalue)


def related(x: Tensor, y: Tensor) -> float:
    """The z of the correlation of two samples."""
    together = torch.stack([x.flatten(), y.flatten()]).double()
    correlation: float = torch.corrcoef(together)[0, 1].item()
    return correlation * math.sqrt(x.numel())


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (7, 3), (2**40, -1)])
def test_a_draw_is_the_hash_of_its_key_on_every_machine(seed: int, epoch: int) -> None:
    index = torch.tensor([5, 0, 2**40])
    draw = Draw(seed, epoch, index)
    for row, example in enumerate(index.tolist()):
        for place in range(4):
            drawn = bits(seed, epoch, example, "mask", place)
            assert draw.uniform("mask", 4)[row, place] == (drawn >> 40) / 2**24
            assert draw.below("mask", 1000, 4)[row, place] == (drawn >> 33) * 1000 >> 31


def test_uniform_draws_are_float32_from_0_up_to_but_not_1() -> None:
    drawn = Draw(0, 0, rows(500)).uniform("x", 1000)
    assert drawn.dtype is torch.float32
    assert 0 <= drawn.min() < 1e-4
    assert 1 - 1e-4 < drawn.max() < 1


@pytest.mark.parametrize("high", [1, 2, 97, 30_000, 2**31])
def test_draws_below_a_number_are_below_it(high: int) -> None:
    drawn = Draw(0, 0, rows(50)).below("x", high, 100)
    assert drawn.dtype is torch.int64
    assert drawn.min() >= 0
    assert drawn.max() < high
    assert drawn.max() > 0.9 * high - 1


@pytest.mark.parametrize("bins", [64, 1000])
def test_draws_are_even(bins: int) -> None:
    draw = Draw(1, 2, rows(1000))
    assert even((draw.uniform("x", 500) * bins).long(), bins) > UNLIKELY
    assert even(draw.below("x", bins, 500), bins) > UNLIKELY


def test_the_last_bits_of_a_draw_are_even() -> None:
    assert even((Draw(1, 2, rows(1000)).uniform("x", 500) * 2**24).long() % 256, 256) > UNLIKELY


def test_draws_of_an_example_are_even_wherever_it_is() -> None:
    draw = Draw(0, 0, rows(20_000)).uniform("x", 4)
    for place in range(4):
        assert even((draw[:, place] * 50).long(), 50) > UNLIKELY


@pytest.mark.parametrize("step", [1, 2, 64])
def test_neighbours_have_nothing_to_do_with_each_other(step: int) -> None:
    drawn = Draw(0, 0, rows(600)).uniform("x", 600)
    assert abs(related(drawn[:, :-step], drawn[:, step:])) < 4
    assert abs(related(drawn[:-step], drawn[step:])) < 4
    for one, other in ((drawn[:, :-step], drawn[:, step:]), (drawn[:-step], drawn[step:])):
        assert even((one * 16).long() * 16 + (other * 16).long(), 256) > UNLIKELY


def test_names_epochs_and_seeds_have_nothing_to_do_with_each_other() -> None:
    def drawn(name: str, seed: int, epoch: int) -> Tensor:
        return Draw(seed, epoch, rows(300)).uniform(name, 300)

    first = drawn("x", 0, 0)
    others = [drawn("y", 0, 0), drawn("x", 0, 1), drawn("x", 1, 0), drawn("x", 2**32, 0), drawn("x", 0, -1)]
    for other in others:
        assert not torch.equal(first, other)
        assert abs(related(first, other)) < 4
        assert even((first * 16).long() * 16 + (other * 16).long(), 256) > UNLIKELY


def test_no_two_of_a_million_examples_are_drawn_alike() -> None:
    drawn = Draw(0, 0, rows(1_000_000)).below("x", 2**31, 2)
    assert len(np.unique((drawn[:, 0] * 2**31 + drawn[:, 1]).numpy())) == 1_000_000


def test_a_longer_draw_begins_as_a_shorter_one_does() -> None:
    draw = Draw(0, 0, rows(8))
    assert torch.equal(draw.uniform("x", 512)[:, :77], draw.uniform("x", 77))
    assert torch.equal(draw.below("x", 9, 512)[:, :77], draw.below("x", 9, 77))


def test_an_example_is_drawn_alike_in_any_batch() -> None:
    whole = Draw(3, 1, rows(64)).uniform("x", 33)
    shuffled = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Draw(3, 1, shuffled).uniform("x", 33), whole[shuffled])
    assert torch.equal(torch.cat([Draw(3, 1, rows(1, i)).uniform("x", 33) for i in range(64)]), whole)


def test_drawing_again_gives_the_same_and_leaves_the_index_alone() -> None:
    index = rows(5, 3)
    draw = Draw(0, 0, index)
    assert torch.equal(draw.uniform("x", 9), draw.uniform("x", 9))
    assert torch.equal(index, rows(5, 3))


def test_the_order_of_an_epoch_is_a_permutation_of_its_own() -> None:
    orders = [order(0, 0, 1000), order(0, 1, 1000), order(1, 0, 1000)]
    assert all(sorted(each) == list(range(1000)) for each in orders)
    assert np.array_equal(order(0, 0, 1000), orders[0])
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.mean(orders[one] == orders[other]) < 0.02
