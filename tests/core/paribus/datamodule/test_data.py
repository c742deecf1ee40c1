"""Data module: the examples of a step are a function of (seed, step) only."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

from paribus import IGNORED, DataError, Draw, SpecError
from paribus.datamodule import data as module
from paribus.datamodule.data import Data, join_shares
from paribus.datamodule.examples import Examples
from paribus.datamodule.packing import ConcatenatedDocuments
from paribus.datamodule.token_store import EncodedCorpus, SplitTokens
from paribus.evidence.digests import batch_digest
from paribus.parts.batch import Batch
from paribus.slots.tokenizer import Vocabulary

Feed = Callable[..., Data]
PRESETS = ("gpt-tiny", "encoder-tiny", "seq2seq-tiny", "bert-tiny")


def digests(batches: Any) -> list[str]:
    return [batch_digest(batch) for batch in batches]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_step_does_not_depend_on_earlier_requests(preset: str, feed: Feed) -> None:
    one, fresh = feed(preset), feed(preset)
    steps = [0, 7, 3, 3, one.steps_an_epoch, 1, 0]
    expected = {step: batch_digest(one.step(step)) for step in sorted(set(steps))}
    assert [batch_digest(fresh.step(step)) for step in steps] == [expected[step] for step in steps]
    assert len(set(expected.values())) == len(expected)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_seed_decides_order_and_corruption_and_the_architecture_neither(preset: str, feed: Feed) -> None:
    plain, swapped = feed(preset), feed(preset, "attention=mqa", "dims.width=8", "feedforward=glu", "dims.layers=1")
    reseeded = feed(preset, "seed=1")
    for step in range(3):
        assert batch_digest(plain.step(step)) == batch_digest(swapped.step(step))
        assert plain.step(step).index.tolist() != reseeded.step(step).index.tolist()


@pytest.mark.parametrize("preset", PRESETS)
def test_an_epoch_has_each_example_once_in_its_own_order(preset: str, feed: Feed) -> None:
    data = feed(preset, "data.batch=3")
    count = data.steps_an_epoch
    epochs = [[data.step(epoch * count + step).index.tolist() for step in range(count)] for epoch in range(2)]
    for epoch in epochs:
        indices = list(itertools.chain(*epoch))
        assert len(indices) == len(set(indices)) == count * 3
        assert set(indices) <= set(range(data.train_examples.count))
    assert data.train_examples.count - count * 3 < 3
    assert epochs[0] != epochs[1]


def test_an_example_is_masked_anew_in_each_epoch_independently_of_its_batch(feed: Feed) -> None:
    data, small = feed("encoder-tiny"), feed("encoder-tiny", "data.batch=2")

    def hidden(data: Data, epoch: int) -> dict[int, list[int]]:
        steps = range(epoch * data.steps_an_epoch, (epoch + 1) * data.steps_an_epoch)
        rows = [(batch.index, batch.streams["body"].tokens) for batch in map(data.step, steps)]
        return {int(number): row.tolist() for index, tokens in rows for number, row in zip(index, tokens, strict=True)}

    first_epoch, second_epoch, small_batches = hidden(data, 0), hidden(data, 1), hidden(small, 0)
    assert all(small_batches[example] == row for example, row in first_epoch.items() if example in small_batches)
    assert (
        sum(first_epoch[example] != second_epoch[example] for example in first_epoch.keys() & second_epoch.keys())
        > len(first_epoch) / 2
    )


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("accumulate", "ranks"), [(1, 1), (3, 1), (1, 2), (2, 3), (8, 1)])
def test_micro_batches_and_ranks_partition_the_rows_of_a_step(
    preset: str, accumulate: int, ranks: int, feed: Feed
) -> None:
    data = feed(preset, f"trainer.accumulate_grad_batches={accumulate}")
    whole = feed(preset)
    for step in (0, 4):
        expected = whole.step(step)
        items = range(step * accumulate, (step + 1) * accumulate)
        shares = [data.micro_batch(item, rank, ranks) for item in items for rank in range(ranks)]
        assert {share.micro_batches for share in shares} == {accumulate * ranks}
        rows = torch.cat([share.index for share in shares])
        assert sorted(rows.tolist()) == sorted(expected.index.tolist())
        actual, reference = dict(tensors(shares)), dict(tensors([expected]))
        order, expected_order = rows.argsort(), expected.index.argsort()
        assert actual.keys() == reference.keys()
        assert all(torch.equal(actual[name][order], reference[name][expected_order]) for name in reference)
        for share in shares:
            assert share.counts == expected.counts
        if accumulate * ranks > 1:
            assert batch_digest(join_shares(shares)) == batch_digest(expected)


def tensors(batches: list[Batch]) -> Iterator[tuple[str, Tensor]]:
    """Return the tensors of batches, concatenated: one row per example."""
    first_batch = batches[0]
    for name, stream in first_batch.streams.items():
        for field, vector in zip(stream._fields, stream, strict=True):
            if vector is not None:
                yield f"{name}.{field}", torch.cat([getattr(batch.streams[name], field) for batch in batches])
    for name, targets in first_batch.targets.items():
        for key in targets:
            yield f"{name}.{key}", torch.cat([batch.targets[name][key] for batch in batches])


@pytest.mark.parametrize("preset", PRESETS)
def test_counts_are_those_of_the_labels_of_the_whole_step(preset: str, feed: Feed) -> None:
    data = feed(preset)
    batch = data.step(2)
    assert batch.counts is not None
    for term, count in batch.counts.items():
        name, _, _ = term.partition("/")
        assert int(count) == int((batch.targets[name]["labels"] != IGNORED).sum()) > 0


@pytest.mark.parametrize("preset", PRESETS)
def test_workers_make_the_same_batches_in_the_same_order(preset: str, feed: Feed) -> None:
    overrides = ["trainer.max_steps=5", "trainer.accumulate_grad_batches=2"]
    alone = digests(feed(preset, *overrides).train_dataloader())
    assert alone == digests(feed(preset, *overrides, "data.workers=2").train_dataloader())
    assert len(alone) == len(set(alone)) == 10


def test_a_resumed_run_continues_after_the_completed_steps(feed: Feed) -> None:
    whole, rest = (feed("encoder-tiny", "trainer.max_steps=9", "trainer.accumulate_grad_batches=2") for _ in range(2))
    rest.completed_steps = 5
    assert digests(rest.train_dataloader()) == digests(whole.train_dataloader())[10:]
    assert len(rest.train_dataloader()) == 8


def test_without_max_steps_a_loader_has_one_epoch(feed: Feed) -> None:
    data = feed("encoder-tiny", "data.batch=16")
    loader = data.train_dataloader()
    count = data.steps_an_epoch
    assert len(loader) == count
    epoch_digests = digests(loader)
    loader.sampler.set_epoch(1)  # type: ignore[attr-defined]  # Lightning does so before each epoch
    assert [*epoch_digests, *digests(loader)] == [batch_digest(data.step(step)) for step in range(2 * count)]


@pytest.mark.parametrize("preset", PRESETS)
def test_the_evaluated_examples_do_not_depend_on_seed_and_batch_size(preset: str, feed: Feed) -> None:
    datas = [feed(preset), feed(preset, "seed=3"), feed(preset, "data.batch=5"), feed(preset, "attention=mqa")]
    results = [dict(tensors(list(data.val_dataloader()))) for data in datas]
    for result in results[1:]:
        assert all(torch.equal(results[0][name], result[name]) for name in results[0])
    assert len({len(data.val_dataloader()) for data in datas}) == 2


def test_at_most_the_configured_number_of_examples_is_evaluated(feed: Feed) -> None:
    data = feed("encoder-tiny", "data.validation=11")
    assert [len(batch.index) for batch in data.val_dataloader()] == [8, 3]
    assert feed("encoder-tiny").val_count == feed("encoder-tiny").val_examples.count


@pytest.mark.parametrize("length", [5, 16])
def test_concatenated_examples_have_an_end_token_after_each_document(
    length: int, feed: Feed, text: EncodedCorpus
) -> None:
    data = feed("gpt-tiny", f"dims.length={length}")
    flow = [token for document in documents(text.train) for token in [*document, 6]]
    for step in range(3):
        batch = data.step(step)
        labels = batch.targets["clm"]["labels"]
        for index, tokens, expected in zip(batch.index.tolist(), batch.streams["body"].tokens, labels, strict=True):
            piece = flow[index * (length + 1) : (index + 1) * (length + 1)]
            assert tokens.tolist() == piece[:-1]
            assert expected.tolist() == piece[1:]


def documents(tokens: Any) -> Iterator[list[int]]:
    for start, stop in itertools.pairwise(tokens.documents.tolist()):
        yield tokens.ids[tokens.sentences[start] : tokens.sentences[stop]].tolist()


def test_examples_with_documents_apart_have_document_numbers(feed: Feed, text: EncodedCorpus) -> None:
    data = feed("gpt-tiny", "data.documents=apart")
    owners = [number for number, document in enumerate(documents(text.train)) for _ in range(len(document) + 1)]
    for step in range(3):
        batch = data.step(step)
        document_numbers = batch.streams["body"].documents
        assert document_numbers is not None
        for index, row, labels in zip(
            batch.index.tolist(), document_numbers, batch.targets["clm"]["labels"], strict=True
        ):
            piece = owners[index * 17 : (index + 1) * 17]
            assert row.tolist() == [owner - piece[0] for owner in piece[:-1]]
            crosses = [current != following for current, following in itertools.pairwise(piece)]
            assert (labels == IGNORED).tolist() == crosses
    assert feed("gpt-tiny").step(0).streams["body"].documents is None


def test_concatenated_examples_have_sentence_numbers_on_request(text: EncodedCorpus) -> None:
    flow = ConcatenatedDocuments(text.train, text.vocabulary, apart=False, sentences=True)
    owners: list[int] = []
    for start, stop in itertools.pairwise(text.train.documents.tolist()):
        for sentence in range(start, stop):
            owners += [sentence] * int(text.train.sentences[sentence + 1] - text.train.sentences[sentence])
        owners.append(stop)  # the end mark is none of the sentence before it
    assert len(owners) == flow.size
    for index in range(3):
        sentence_numbers = flow.examples(np.array([index]), 16).sentences
        assert sentence_numbers is not None
        piece = owners[index * 16 : (index + 1) * 16]
        assert sentence_numbers[0].tolist() == [owner - piece[0] for owner in piece]
    assert ConcatenatedDocuments(text.train, text.vocabulary, apart=False).examples(np.array([0]), 16).sentences is None


def test_a_draw_has_the_completed_fraction_of_training(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    progress_values: list[float] = []
    make_batch = Examples.batch

    def batch(self: Examples, draw: Draw, length: int | None = None) -> Batch:
        progress_values.append(draw.progress)
        return make_batch(self, draw, length)

    monkeypatch.setattr(Examples, "batch", batch)
    data = feed("encoder-tiny", "trainer.max_steps=8")
    for step in (0, 2, 7):
        data.step(step)
    data.validation_batch(0)
    assert progress_values == [0.0, 0.25, 0.875, 1.0]


@pytest.mark.parametrize("preset", [*PRESETS, "xlnet-tiny", "electra-tiny", "t5-tiny", "bart-tiny"])
def test_steps_prepared_together_equal_single_steps(preset: str, feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    together = feed(preset, "data.batch=4")
    digests = [batch_digest(together.step(step)) for step in range(2 * together.steps_an_epoch)]
    monkeypatch.setattr(module, "BATCHED_TOKENS", 1)
    alone = feed(preset, "data.batch=4")
    assert digests == [batch_digest(alone.step(step)) for step in range(2 * alone.steps_an_epoch)]
    assert together._together > alone._together == 1


def test_a_tokenizer_without_eos_ends_documents_with_sep(text: EncodedCorpus) -> None:
    for specials, mark in (({"sep": 3}, [3]), ({"pad": 0}, [])):
        bare = EncodedCorpus(text.tokenizer, Vocabulary(40, specials), text.train, text.val, "", "", {}, 0)
        flow = ConcatenatedDocuments(bare.train, bare.vocabulary, apart=True)
        cut = flow.examples(np.arange(flow.size), 1)
        assert cut.tokens.flatten().tolist() == [
            token for document in documents(text.train) for token in [*document, *mark]
        ]


def test_a_corpus_that_is_too_small_is_rejected(feed: Feed, text: EncodedCorpus) -> None:
    small = SplitTokens(np.arange(15, 35), np.array([0, 10, 20]), np.array([0, 2]))
    little = EncodedCorpus(text.tokenizer, text.vocabulary, small, text.val, "", "", {}, 0)
    match = r"error\[too-little-data\] data\.batch.*1.*8"
    with pytest.raises(DataError, match=match):
        feed("encoder-tiny", text=little)
    little = EncodedCorpus(text.tokenizer, text.vocabulary, text.train, small, "", "", {}, 0)
    match = r"error\[too-little-data\] corpus.*0.*1"
    with pytest.raises(DataError, match=match):
        feed("encoder-tiny", "dims.length=64", "data.batch=2", text=little)


def test_more_micro_batches_than_examples_are_rejected(feed: Feed) -> None:
    data = feed("encoder-tiny")
    data.accumulate = 9  # of a Trainer of the user
    with raises_problem(SpecError, "empty-micro-batch", "trainer.accumulate_grad_batches", "9"):
        data.train_dataloader()


def test_evaluated_documents_are_sampled_and_evaluated_text_is_the_start(feed: Feed) -> None:
    few = feed("bert-tiny", "data.validation=8").validation_batch(0).index.tolist()
    count = feed("bert-tiny").val_examples.count
    assert few == sorted(set(few)) != list(range(8))
    assert max(few) < count
    assert few == feed("bert-tiny", "data.validation=8", "seed=5").validation_batch(0).index.tolist()
    assert feed("gpt-tiny", "data.validation=8").validation_batch(0).index.tolist() == list(range(8))
    whole = feed("bert-tiny", f"data.validation={count}")
    indices = [index for number in range(-(-count // 8)) for index in whole.validation_batch(number).index.tolist()]
    assert indices == list(range(count))
