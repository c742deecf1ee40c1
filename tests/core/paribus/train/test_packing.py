"""Packing: whole documents share rows, and nobody is the wiser for it."""

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
from paribus.parts.batch import PADDING, Batch
from paribus.slots.tokenizer import Vocabulary
from paribus.train.data import Data
from paribus.train.model import Model
from paribus.train.packing import PackedDocuments, pack_lengths
from paribus.train.token_store import EncodedCorpus, SplitTokens

MARK = 7
VOCABULARY = Vocabulary(5000, {"pad": 3, "eos": MARK})


def side(lengths: list[int]) -> SplitTokens:
    """Documents of one sentence each; ids count up from 100, so that each says where it stood."""
    bounds = np.cumsum([0, *lengths])
    return SplitTokens(
        np.arange(100, 100 + bounds[-1]), bounds, np.arange(len(bounds)), languages=np.arange(len(lengths)) % 3
    )


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 32), st.sampled_from([3, 1000]))
def test_each_document_lies_in_rows_once_at_positions_of_its_own(lengths: list[int], most: int, window: int) -> None:
    tokens = side(lengths)
    rows = PackedDocuments(tokens, VOCABULARY, most, window=window)
    cut = rows.examples(np.arange(rows.count))
    assert cut.documents is not None
    assert cut.positions is not None
    assert cut.languages is not None
    found = []
    for ids, documents, positions, languages in zip(
        *(vector.tolist() for vector in (cut.tokens, cut.documents, cut.positions, cut.languages)), strict=True
    ):
        number = 0
        while number in documents:
            own = [at for at, document in enumerate(documents) if document == number]
            assert own == list(range(own[0], own[-1] + 1))
            assert [positions[at] for at in own] == list(range(len(own)))
            assert len({languages[at] for at in own}) == 1
            found.append([ids[at] for at in own])
            number += 1
        assert set(documents) - {PADDING} == set(range(number))
        rest = documents.index(PADDING) if PADDING in documents else most
        assert documents[rest:] == [PADDING] * (most - rest)
        assert ids[rest:] == [VOCABULARY.specials["pad"]] * (most - rest)
        assert all(there == here + 1 for here, there in pairwise(positions[rest - 1 :]))
        assert max(positions) < most
    wanted = []
    for first, last in pairwise(tokens.sentences.tolist()):
        document = [*tokens.ids[first:last].tolist(), MARK]
        wanted += [document[at : at + most] for at in range(0, len(document), most)]
    assert sorted(found) == sorted(wanted)
    assert rows.fill == sum(map(len, wanted)) / (rows.count * most)


def test_sentences_are_told_where_they_are_asked_for() -> None:
    tokens = SplitTokens(np.arange(100, 112), np.array([0, 3, 5, 9, 12]), np.array([0, 2, 4]))
    told = PackedDocuments(tokens, VOCABULARY, 16, sentences=True).examples(np.array([0])).sentences
    assert told is not None
    assert told[0].tolist() == [0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 4, 4, 4, 5, 0, 0]


@given(st.lists(st.integers(1, 32), min_size=1, max_size=200))
def test_no_row_is_opened_while_another_has_room(lengths: list[int]) -> None:
    rows = pack_lengths(np.array(lengths), 32)
    loads = np.bincount(rows, weights=lengths)
    assert loads.max() <= 32
    assert sorted(set(rows.tolist())) == list(range(len(loads)))
    assert len(loads) <= math.ceil(11 / 9 * sum(lengths) / 32 + 6 / 9) or (np.array(lengths) > 32 / 3).any()
    assert len(loads) == 1 or (loads < 16).sum() <= 1


@pytest.mark.parametrize("spread", [0.6, 1.0, 1.6])
def test_rows_are_filled_to_97_of_a_hundred(spread: float) -> None:
    """Documents as long as those of corpora are: their logarithms are normal, about rows of several sizes."""
    lengths = np.random.default_rng(0).lognormal(5.0, spread, 20_000).astype(int) + 1
    for most in (128, 512, 1024):
        assert PackedDocuments(side(lengths.tolist()), VOCABULARY, most).fill >= 0.97, (spread, most)


def test_packing_takes_the_time_of_lengths_and_not_of_documents() -> None:
    lengths = np.random.default_rng(0).integers(1, 257, 300_000)
    rows = pack_lengths(lengths, 256, window=1 << 20)
    assert np.bincount(rows, weights=lengths).max() <= 256
    assert lengths.sum() / (256 * (rows.max() + 1)) > 0.99


# --- whole models ---

Assemble = Callable[..., Model]
Shake = Callable[[Model], Model]
Feed = Callable[..., Data]


def unpacked(batch: Batch) -> Batch:
    """Each document of each row in a row of its own, and padding behind it."""
    body = batch.streams["body"]
    assert body.documents is not None
    owners = body.documents
    kept = [(row, number) for row in range(len(owners)) for number in range(int(owners[row].max()) + 1)]

    def moved(vector: torch.Tensor, rest: int) -> torch.Tensor:
        found = torch.full((len(kept), vector.shape[1]), rest, dtype=vector.dtype)
        for at, (row, number) in enumerate(kept):
            own = vector[row][owners[row] == number]
            found[at, : len(own)] = own
        return found

    length = owners.shape[1]
    stream = Stream(
        moved(body.tokens, 0),
        documents=torch.where(moved(owners, PADDING) >= 0, 0, PADDING),
        positions=torch.arange(length).repeat(len(kept), 1),
    )
    streams = {"body": stream}
    targets: dict[str, Any] = {}
    for name, own in batch.targets.items():
        if "pick" in own:  # as a vector of all rows, which is moved, and picked from again
            whole = torch.full_like(body.tokens, IGNORED).scatter(1, own["pick"], own["labels"])
            labels = moved(whole, IGNORED)
            targets[name] = {"pick": torch.arange(length).repeat(len(kept), 1), "labels": labels}
        else:
            targets[name] = {"labels": moved(own["labels"], IGNORED)}
    return Batch(streams, targets, torch.arange(len(kept)), batch.counts)


CASES = {
    "learned": ("gpt-tiny", "position=learned"),
    "rotated": ("gpt-tiny", "position=rope", "attention=gqa"),
    "biased": ("gpt-tiny", "position=alibi"),
    "windowed": ("gpt-tiny", "position=t5", "attention=restricted", "attention.window=4"),
    "both sides": ("encoder-tiny", "position=learned"),
    "sinusoidal": ("encoder-tiny", "position=sinusoidal", "objective.random=0.3", "objective.mask=0.5"),
}


@pytest.mark.parametrize("case", CASES)
def test_documents_that_share_rows_learn_what_they_would_alone(
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
    for name, one, other in zip(
        names,
        torch.autograd.grad(together, list(model.parameters())),
        torch.autograd.grad(alone, list(model.parameters())),
        strict=True,
    ):
        assert torch.allclose(one, other, rtol=0, atol=1e-9), name


@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny"])
def test_padding_is_neither_predicted_nor_counted(preset: str, feed: Feed, text: EncodedCorpus) -> None:
    data = feed(preset, "data.documents=packed", "dims.length=48")
    assert data.train_examples.packed is not None
    assert 0.5 < data.train_examples.packed.fill < 1
    seen = 0
    for step in range(data.steps_an_epoch):
        batch = data.step(step)
        assert batch.counts is not None
        (targets,) = batch.targets.values()
        documents = batch.streams["body"].documents
        assert documents is not None
        where = targets.get("pick", torch.arange(48).repeat(len(documents), 1))
        labelled = targets["labels"] != IGNORED
        assert (documents.gather(1, where)[labelled] >= 0).all()
        (count,) = batch.counts.values()
        assert int(count) == int(labelled.sum()) > 0
        seen += int((documents >= 0).sum())
    assert seen <= len(text.train.ids) + len(text.train.documents) - 1
