"""Buckets: batches of about one length, and nothing else about an epoch changes."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paribus import IGNORED, SpecError
from paribus.parts.draw import order
from paribus.train.data import Data
from paribus.train.digests import batch_digest
from paribus.train.examples import bucket_order, padded_length

Feed = Callable[..., Data]
PAIRED = ("bert-tiny", "dims.length=64", "data.batch=4")


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 9), st.integers(0, 3))
def test_an_epoch_has_the_same_examples_in_batches_of_like_lengths(
    count: int, batch: int, window: int, epoch: int
) -> None:
    lengths = np.random.default_rng(count).integers(1, 100, count)
    plain = order(5, epoch, count)
    found = bucket_order(plain, lengths, batch, window, seed=5, epoch=epoch)
    kept = count // batch * batch
    assert sorted(found.tolist()) == sorted(plain[:kept].tolist())
    for start in range(0, kept, batch * window):
        part = slice(start, start + batch * window)
        assert sorted(found[part].tolist()) == sorted(plain[:kept][part].tolist())
        spans = sorted((lengths[rows].min(), lengths[rows].max()) for rows in found[part].reshape(-1, batch))
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert found.tolist() == bucket_order(plain, lengths, batch, window, seed=5, epoch=epoch).tolist()


def test_batches_of_a_window_do_not_come_by_length() -> None:
    lengths = np.arange(512)
    found = bucket_order(order(0, 0, 512), lengths, 4, 64, seed=0, epoch=0).reshape(-1, 4)
    first = lengths[found[:64]].mean(axis=1)
    assert (np.diff(first) < 0).sum() > 16
    other = bucket_order(order(0, 0, 512), lengths, 4, 64, seed=0, epoch=1).reshape(-1, 4)
    assert not np.array_equal(np.argsort(first), np.argsort(lengths[other[:64]].mean(axis=1)))


@pytest.mark.parametrize(("lengths", "most", "rows"), [([1], 64, 8), ([8, 3], 64, 8), ([9], 64, 16), ([63], 60, 60)])
def test_a_batch_has_as_many_rows_as_its_longest_example_needs(lengths: list[int], most: int, rows: int) -> None:
    assert padded_length(np.array(lengths), most) == rows


def rows(data: Data, steps: int) -> dict[int, tuple[Any, ...]]:
    """What became of each example: what its rows hold up to padding, and what is predicted there."""
    found: dict[int, tuple[Any, ...]] = {}
    for batch in map(data.step, range(steps)):
        body = batch.streams["body"]
        assert body.documents is not None
        for at, number in enumerate(batch.index.tolist()):
            text = body.documents[at] >= 0
            masked = batch.targets["mlm"]
            labels = torch.full_like(body.tokens[at], IGNORED).scatter(0, masked["pick"][at], masked["labels"][at])
            found[number] = (
                body.tokens[at][text].tolist(),
                labels[text].tolist(),
                int(batch.targets["nsp"]["labels"][at]),
            )
    return found


def test_an_example_is_formed_and_hidden_alike_in_a_shorter_batch(feed: Feed) -> None:
    plain, sorted_ = feed(*PAIRED), feed(*PAIRED, "data.bucket=4")
    steps = plain.steps_an_epoch
    assert steps == sorted_.steps_an_epoch > 4
    one, other = rows(plain, steps), rows(sorted_, steps)
    assert one.keys() == other.keys()
    cut = {number for number in one if one[number] != other[number]}
    assert len(cut) < len(one) / 4
    for number in cut:  # a segment from elsewhere that is longer than the one whose place it took
        assert one[number][2] == other[number][2] == 1
        assert len(other[number][0]) < len(one[number][0])
    widths = [sorted_.step(step).streams["body"].tokens.shape[1] for step in range(steps)]
    assert len(set(widths)) > 1
    assert all(width % 8 == 0 for width in widths)


def test_padding_becomes_less(feed: Feed) -> None:
    def share(data: Data) -> float:
        bodies = [data.step(step).streams["body"].documents for step in range(data.steps_an_epoch)]
        sizes = [(int((body >= 0).sum()), body.numel()) for body in bodies if body is not None]
        return sum(text for text, _ in sizes) / sum(whole for _, whole in sizes)

    assert share(feed(*PAIRED, "data.bucket=8")) > share(feed(*PAIRED)) + 0.05


def test_what_is_evaluated_is_not_sorted(feed: Feed) -> None:
    one, other = (
        [batch_digest(batch) for batch in feed(*PAIRED, more).val_dataloader()]
        for more in ("data.bucket=0", "data.bucket=9")
    )
    assert one == other


SHARED = ("trainer.max_steps=6", "trainer.accumulate_grad_batches=2")


@pytest.mark.parametrize(
    "spec",
    [(*PAIRED, "data.bucket=3"), ("gpt-tiny", "data.documents=packed"), ("encoder-tiny", "data.documents=packed")],
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")  # more than this machine has cores
def test_workers_change_nothing_of_packed_or_sorted_batches(spec: tuple[str, ...], feed: Feed) -> None:
    made = [
        [batch_digest(batch) for batch in feed(*spec, *SHARED, f"data.workers={workers}").train_dataloader()]
        for workers in (0, 1, 3)
    ]
    assert made[0] == made[1] == made[2]
    assert len(set(made[0])) == 12


def test_an_objective_that_does_not_say_how_long_its_examples_are_is_refused(feed: Feed) -> None:
    data = feed("encoder-tiny")
    match = r"error\[not-read\] data.bucket"
    with pytest.raises(SpecError, match=match):
        data.train_examples.lengths()
