"""Packing: whole documents share examples without an effect on each other."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paribus import IGNORED, Stream
from paribus.datamodule.data import Data
from paribus.datamodule.packing import PackedDocuments, pack_lengths
from paribus.datamodule.token_store import EncodedCorpus, SplitTokens
from paribus.models.lightning_module import Model
from paribus.parts.batch import PADDING, Batch
from paribus.slots.tokenizer import Vocabulary

MARK = 7
VOCABULARY = Vocabulary(5000, {"pad": 3, "eos": MARK})


def side(lengths: list[int]) -> SplitTokens:
    """Return documents of one sentence each; ids count up from 100, so that each shows its place."""
    bounds = np.cumsum([0, *lengths])
    return SplitTokens(
        np.arange(100, 100 + bounds[-1]), bounds, np.arange(len(bounds)), languages=np.arange(len(lengths)) % 3
    )


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 32), st.sampled_from([3, 1000]))
def test_each_document_is_packed_once_with_its_own_positions(lengths: list[int], limit: int, window: int) -> None:
    tokens = side(lengths)
    rows = PackedDocuments(tokens, VOCABULARY, limit, window=window)
    cut = rows.examples(np.arange(rows.count))
    assert cut.documents is not None
    assert cut.positions is not None
    assert cut.languages is not None
    packed_pieces = []
    for ids, documents, positions, languages in zip(
        *(vector.tolist() for vector in (cut.tokens, cut.documents, cut.positions, cut.languages)), strict=True
    ):
        number = 0
        while number in documents:
            indices = [index for index, document in enumerate(documents) if document == number]
            assert indices == list(range(indices[0], indices[-1] + 1))
            assert [positions[index] for index in indices] == list(range(len(indices)))
            assert len({languages[index] for index in indices}) == 1
            packed_pieces.append([ids[index] for index in indices])
            number += 1
        assert set(documents) - {PADDING} == set(range(number))
        rest = documents.index(PADDING) if PADDING in documents else limit
        assert documents[rest:] == [PADDING] * (limit - rest)
        assert ids[rest:] == [VOCABULARY.specials["pad"]] * (limit - rest)
        assert all(following == current + 1 for current, following in pairwise(positions[rest - 1 :]))
        assert max(positions) < limit
    expected_pieces = []
    for start, stop in pairwise(tokens.sentences.tolist()):
        document = [*tokens.ids[start:stop].tolist(), MARK]
        expected_pieces += [document[index : index + limit] for index in range(0, len(document), limit)]
    assert sorted(packed_pieces) == sorted(expected_pieces)
    assert rows.fill == sum(map(len, expected_pieces)) / (rows.count * limit)


def test_packed_examples_have_sentence_numbers_on_request() -> None:
    tokens = SplitTokens(np.arange(100, 112), np.array([0, 3, 5, 9, 12]), np.array([0, 2, 4]))
    sentence_numbers = PackedDocuments(tokens, VOCABULARY, 16, sentences=True).examples(np.array([0])).sentences
    assert sentence_numbers is not None
    assert sentence_numbers[0].tolist() == [0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 4, 4, 5, 0, 0]


@pytest.mark.thorough
@given(st.lists(st.integers(1, 32), min_size=1, max_size=200))
def test_no_example_is_started_while_another_has_room(lengths: list[int]) -> None:
    rows = pack_lengths(np.array(lengths), 32)
    loads = np.bincount(rows, weights=lengths)
    assert loads.max() <= 32
    assert sorted(set(rows.tolist())) == list(range(len(loads)))
    assert len(loads) <= math.ceil(11 / 9 * sum(lengths) / 32 + 6 / 9) or (np.array(lengths) > 32 / 3).any()
    assert len(loads) == 1 or (loads < 16).sum() <= 1


@pytest.mark.parametrize("spread", [0.6, 1.0, 1.6])
def test_examples_are_filled_to_97_percent(spread: float) -> None:
    """The lengths of the documents have a log-normal distribution, as in real corpora."""
    lengths = np.random.default_rng(0).lognormal(5.0, spread, 20_000).astype(int) + 1
    for limit in (128, 512, 1024):
        assert PackedDocuments(side(lengths.tolist()), VOCABULARY, limit).fill >= 0.97, (spread, limit)


def test_packing_time_depends_on_lengths_and_not_on_documents() -> None:
    lengths = np.random.default_rng(0).integers(1, 257, 300_000)
    rows = pack_lengths(lengths, 256, window=1 << 20)
    assert np.bincount(rows, weights=lengths).max() <= 256
    assert lengths.sum() / (256 * (rows.max() + 1)) > 0.99


# --- whole models ---

Assemble = Callable[..., Model]
Shake = Callable[[Model], Model]
Feed = Callable[..., Data]


def unpacked(batch: Batch) -> Batch:
    """Return a batch with each packed document as an example of its own, followed by padding."""
    body = batch.streams["body"]
    assert body.documents is not None
    owners = body.documents
    document_rows = [(row, number) for row in range(len(owners)) for number in range(int(owners[row].max()) + 1)]

    def moved(vector: torch.Tensor, rest: int) -> torch.Tensor:
        result = torch.full((len(document_rows), vector.shape[1]), rest, dtype=vector.dtype)
        for index, (row, number) in enumerate(document_rows):
            values = vector[row][owners[row] == number]
            result[index, : len(values)] = values
        return result

    length = owners.shape[1]
    stream = Stream(
        moved(body.tokens, 0),
        documents=torch.where(moved(owners, PADDING) >= 0, 0, PADDING),
        positions=torch.arange(length).repeat(len(document_rows), 1),
    )
    streams = {"body": stream}
    targets: dict[str, Any] = {}
    for name, label_tensors in batch.targets.items():
        if "pick" in label_tensors:  # as a vector of all rows, which is moved, and picked from again
            whole = torch.full_like(body.tokens, IGNORED).scatter(1, label_tensors["pick"], label_tensors["labels"])
            labels = moved(whole, IGNORED)
            targets[name] = {"pick": torch.arange(length).repeat(len(document_rows), 1), "labels": labels}
        else:
            targets[name] = {"labels": moved(label_tensors["labels"], IGNORED)}
    return Batch(streams, targets, torch.arange(len(document_rows)), batch.counts)


CASES = {
    "learned": ("gpt-tiny", "position=learned"),
    "rotated": ("gpt-tiny", "position=rope", "attention=gqa"),
    "biased": ("gpt-tiny", "position=alibi"),
    "windowed": ("gpt-tiny", "position=t5", "attention=restricted", "attention.window=4"),
    "both sides": ("encoder-tiny", "position=learned"),
    "sinusoidal": ("encoder-tiny", "position=sinusoidal", "objective.random=0.3", "objective.mask=0.5"),
}


@pytest.mark.parametrize("case", CASES)
def test_packed_documents_have_the_losses_of_separate_documents(
    case: str, assemble: Assemble, shake: Shake, feed: Feed
) -> None:
    spec = [*CASES[case], "data.documents=packed", "dims.length=48"]
    model, batch = shake(assemble(*spec)), feed(*spec).step(1)
    documents = batch.streams["body"].documents
    assert documents is not None
    assert documents.max() >= 1
    together, alone = model.loss(batch), model.loss(unpacked(batch))
    assert together.item() == pytest.approx(alone.item(), rel=0, abs=1e-9)
    names = [name for name, _ in model.named_parameters()]
    for name, packed_gradient, unpacked_gradient in zip(
        names,
        torch.autograd.grad(together, list(model.parameters())),
        torch.autograd.grad(alone, list(model.parameters())),
        strict=True,
    ):
        assert torch.allclose(packed_gradient, unpacked_gradient, rtol=0, atol=1e-9), name


@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny"])
def test_padding_is_not_predicted_or_counted(preset: str, feed: Feed, text: EncodedCorpus) -> None:
    data = feed(preset, "data.documents=packed", "dims.length=48")
    assert data.train_examples.packed is not None
    assert 0.5 < data.train_examples.packed.fill < 1
    token_count = 0
    for step in range(data.steps_an_epoch):
        batch = data.step(step)
        assert batch.counts is not None
        (targets,) = batch.targets.values()
        documents = batch.streams["body"].documents
        assert documents is not None
        positions = targets.get("pick", torch.arange(48).repeat(len(documents), 1))
        labelled = targets["labels"] != IGNORED
        assert (documents.gather(1, positions)[labelled] >= 0).all()
        (count,) = batch.counts.values()
        assert int(count) == int(labelled.sum()) > 0
        token_count += int((documents >= 0).sum())
    assert token_count <= len(text.train.ids) + len(text.train.documents) - 1
