"""Length buckets: batches of similar lengths from the same examples of an epoch."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus import IGNORED, SpecError
from paribus.datamodule.data import Data
from paribus.datamodule.examples import bucket_order, padded_length
from paribus.evidence.digests import batch_digest
from paribus.parts.random_draws import order

Feed = Callable[..., Data]
PAIRED = ("bert-tiny", "dims.length=64", "data.batch=4")


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 9), st.integers(0, 3))
def test_an_epoch_has_the_same_examples_in_batches_of_similar_lengths(
    count: int, batch: int, window: int, epoch: int
) -> None:
    lengths = np.random.default_rng(count).integers(1, 100, count)
    plain = order(5, epoch, count)
    bucketed = bucket_order(plain, lengths, batch, window, seed=5, epoch=epoch)
    batched_count = count // batch * batch
    assert sorted(bucketed.tolist()) == sorted(plain[:batched_count].tolist())
    for start in range(0, batched_count, batch * window):
        part = slice(start, start + batch * window)
        assert sorted(bucketed[part].tolist()) == sorted(plain[:batched_count][part].tolist())
        spans = sorted((lengths[rows].min(), lengths[rows].max()) for rows in bucketed[part].reshape(-1, batch))
        assert all(previous[1] <= following[0] for previous, following in pairwise(spans))
    assert bucketed.tolist() == bucket_order(plain, lengths, batch, window, seed=5, epoch=epoch).tolist()


def test_batches_of_a_window_are_not_ordered_by_length() -> None:
    lengths = np.arange(512)
    epoch_batches = bucket_order(order(0, 0, 512), lengths, 4, 64, seed=0, epoch=0).reshape(-1, 4)
    mean_lengths = lengths[epoch_batches[:64]].mean(axis=1)
    assert (np.diff(mean_lengths) < 0).sum() > 16
    next_epoch_batches = bucket_order(order(0, 0, 512), lengths, 4, 64, seed=0, epoch=1).reshape(-1, 4)
    assert not np.array_equal(np.argsort(mean_lengths), np.argsort(lengths[next_epoch_batches[:64]].mean(axis=1)))


@pytest.mark.parametrize(("lengths", "limit", "rows"), [([1], 64, 8), ([8, 3], 64, 8), ([9], 64, 16), ([63], 60, 60)])
def test_a_batch_is_padded_to_its_longest_example(lengths: list[int], limit: int, rows: int) -> None:
    assert padded_length(np.array(lengths), limit) == rows


def rows(data: Data, steps: int) -> dict[int, tuple[Any, ...]]:
    """Return the tokens and the targets of each example, without padding."""
    examples: dict[int, tuple[Any, ...]] = {}
    for batch in map(data.step, range(steps)):
        body = batch.streams["body"]
        assert body.documents is not None
        for index, number in enumerate(batch.index.tolist()):
            text = body.documents[index] >= 0
            masked = batch.targets["mlm"]
            labels = torch.full_like(body.tokens[index], IGNORED).scatter(
                0, masked["pick"][index], masked["labels"][index]
            )
            examples[number] = (
                body.tokens[index][text].tolist(),
                labels[text].tolist(),
                int(batch.targets["nsp"]["labels"][index]),
            )
    return examples


def test_an_example_is_equal_in_a_shorter_batch(feed: Feed) -> None:
    plain, sorted_ = feed(*PAIRED), feed(*PAIRED, "data.bucket=4")
    steps = plain.steps_an_epoch
    assert steps == sorted_.steps_an_epoch > 4
    plain_rows, sorted_rows = rows(plain, steps), rows(sorted_, steps)
    assert plain_rows.keys() == sorted_rows.keys()
    cut = {number for number in plain_rows if plain_rows[number] != sorted_rows[number]}
    assert len(cut) < len(plain_rows) / 4
    for number in cut:  # pairs with a longer random segment
        assert plain_rows[number][2] == sorted_rows[number][2] == 1
        assert len(sorted_rows[number][0]) < len(plain_rows[number][0])
    widths = [sorted_.step(step).streams["body"].tokens.shape[1] for step in range(steps)]
    assert len(set(widths)) > 1
    assert all(width % 8 == 0 for width in widths)


def test_bucketing_reduces_padding(feed: Feed) -> None:
    def share(data: Data) -> float:
        bodies = [data.step(step).streams["body"].documents for step in range(data.steps_an_epoch)]
        sizes = [(int((body >= 0).sum()), body.numel()) for body in bodies if body is not None]
        return sum(text for text, _ in sizes) / sum(whole for _, whole in sizes)

    assert share(feed(*PAIRED, "data.bucket=8")) > share(feed(*PAIRED)) + 0.05


def test_evaluated_examples_are_not_bucketed(feed: Feed) -> None:
    unsorted, bucketed = (
        [batch_digest(batch) for batch in feed(*PAIRED, option).val_dataloader()]
        for option in ("data.bucket=0", "data.bucket=9")
    )
    assert unsorted == bucketed


SHARED = ("trainer.max_steps=6", "trainer.accumulate_grad_batches=2")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "spec",
    [(*PAIRED, "data.bucket=3"), ("gpt-tiny", "data.documents=packed"), ("encoder-tiny", "data.documents=packed")],
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")  # more workers than cores
def test_batches_do_not_depend_on_the_number_of_workers(spec: tuple[str, ...], feed: Feed) -> None:
    digests = [
        [batch_digest(batch) for batch in feed(*spec, *SHARED, f"data.workers={workers}").train_dataloader()]
        for workers in (0, 1, 3)
    ]
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests[0])) == 12


def test_an_objective_without_example_lengths_is_rejected(feed: Feed) -> None:
    data = feed("encoder-tiny")
    with raises_problem(SpecError, "unused-option", "data.bucket"):
        data.train_examples.lengths()
