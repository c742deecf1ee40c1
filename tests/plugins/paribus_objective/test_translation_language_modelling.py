"""Translation language modelling: layout, languages and masks of pairs."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tests.fixtures.problems import raises_problem

from paribus import IGNORED, PADDING, Draw, Objective, SpecError, Stream, Tokens, Vocabulary

Build = Callable[..., Objective]
Corpus = Callable[[Sequence[Sequence[int]]], Tokens]

PAD, CLS, SEP, MASK = 0, 1, 2, 3
VOCABULARY = Vocabulary(9000, {"pad": PAD, "cls": CLS, "sep": SEP, "mask": MASK})
ONE = [[4, 3], [10], [5, 5, 5], [1], [40], [30]] * 30
OTHER = [[8], [9, 2], [6], [2], [3], [33, 4]] * 30


@pytest.fixture
def tokens(corpus: Corpus) -> Any:
    """A corpus of pairs: source ids below 4000, target ids above."""
    data: Any = corpus(ONE)
    data.ids = data.ids.astype(np.int64)
    data.targets = corpus(OTHER)
    data.targets.ids = data.targets.ids.astype(np.int64) + 4900
    data.languages, data.targets.languages = np.zeros(180, np.int64), 1 + np.arange(180) % 2
    return data


def texts(side: Any) -> list[list[int]]:
    bounds = side.sentences[side.documents]
    return [side.ids[start:end].tolist() for start, end in itertools.pairwise(bounds)]


def unmasked_examples(objective: Objective, tokens: Tokens, length: int = 32, epoch: int = 0) -> Stream:
    """The examples before masking."""
    return objective.form(tokens, length, Draw(0, epoch, torch.arange(180))).streams["body"]


def segments_of(row: list[int]) -> list[list[int]]:
    """Tokens between each cls and its sep."""
    segments = []
    while CLS in row:
        end = row.index(SEP)
        assert row[0] == CLS
        segments.append(row[1:end])
        row = row[end + 1 :]
    assert set(row) <= {PAD}
    return segments


def test_text_and_translation_share_one_sequence(build: Build, tokens: Any) -> None:
    body = unmasked_examples(build("tlm", VOCABULARY), tokens)
    sources, targets = texts(tokens), texts(tokens.targets)
    target_first = []
    for document, row in enumerate(body.tokens.tolist()):
        segments = segments_of(row)
        assert len(segments) == 2
        target_first.append(segments[0][0] >= 5000)
        source, target = reversed(segments) if target_first[-1] else segments
        assert sources[document][: len(source)] == source
        assert targets[document][: len(target)] == target
        room = 28 - len(source) - len(target)
        is_whole = len(sources[document]) == len(source) and len(targets[document]) == len(target)
        assert is_whole or room == 0
        if not is_whole and min(len(sources[document]), len(targets[document])) > 14:
            assert {len(source), len(target)} == {14}
    assert sum(target_first) == pytest.approx(90, abs=4 * 0.5 * 180**0.5)


def test_positions_restart_and_tokens_have_their_language(build: Build, tokens: Any) -> None:
    body = unmasked_examples(build("tlm", VOCABULARY), tokens)
    assert body.positions is not None
    assert body.languages is not None
    assert body.documents is not None
    assert body.segments is None
    for document, row in enumerate(body.tokens.tolist()):
        segments = segments_of(row)
        first_length, second_length = len(segments[0]) + 2, len(segments[1]) + 2
        assert body.positions[document, : first_length + second_length].tolist() == [
            *range(first_length),
            *range(second_length),
        ]
        languages = [1 + document % 2 if text[0] >= 5000 else 0 for text in segments]
        assert (
            body.languages[document, : first_length + second_length].tolist()
            == [languages[0]] * first_length + [languages[1]] * second_length
        )
        assert body.documents[document].tolist() == [0] * (first_length + second_length) + [PADDING] * (
            32 - first_length - second_length
        )
    assert body.positions.max() < 32


def test_a_share_of_the_examples_has_only_one_side(build: Build, tokens: Any) -> None:
    objective = build("tlm", VOCABULARY, monolingual=0.5)
    rows = [
        segments_of(row)
        for epoch in range(10)
        for row in unmasked_examples(objective, tokens, epoch=epoch).tokens.tolist()
    ]
    single = [row[0] for row in rows if len(row) == 1]
    assert len(single) == pytest.approx(900, abs=4 * (1800 / 4) ** 0.5)
    target_count = sum(text[0] >= 5000 for text in single)
    assert target_count == pytest.approx(len(single) / 2, abs=4 * (len(single) / 4) ** 0.5)
    assert max(map(len, single)) == 30
    assert {
        len(row)
        for row in map(
            segments_of, unmasked_examples(build("tlm", VOCABULARY, monolingual=1.0), tokens).tokens.tolist()
        )
    } == {1}


def test_both_sides_are_masked_equally_but_not_special_tokens(build: Build, tokens: Any) -> None:
    objective = build("tlm", VOCABULARY, rate=0.2)
    masked, totals = np.zeros(2), np.zeros(2)
    for epoch in range(20):
        draw = Draw(0, epoch, torch.arange(180))
        formed = objective.form(tokens, 32, draw)
        batch = objective.corrupt(formed.streams, formed.targets, draw)
        labels = batch.targets["labels"]
        assert (labels != IGNORED).any(1).all()
        text = formed.streams["body"].tokens
        assert torch.equal(text.gather(1, batch.targets["pick"])[labels != IGNORED], labels[labels != IGNORED])
        for side, id_range in enumerate((slice(100, 5000), slice(5000, 9000))):
            masked[side] += int(((labels >= id_range.start) & (labels < id_range.stop)).sum())
            totals[side] += int(((text >= id_range.start) & (text < id_range.stop)).sum())
        assert (labels[labels != IGNORED] > MASK).all()
    expected = totals * masked.sum() / totals.sum()
    assert stats.chisquare(masked, expected).pvalue > 1e-4
    # At least one token of each text is masked: more than a fifth of short ones.
    assert masked.sum() / totals.sum() == pytest.approx(0.2, abs=0.01)


def test_lengths_of_examples_are_known_and_short_batches_hold_the_same(build: Build, tokens: Any) -> None:
    objective = build("tlm", VOCABULARY)
    lengths = objective.example_lengths(tokens, 32)
    assert lengths is not None
    expected = [
        min(len(source) + len(target) + 4, 32)
        for source, target in zip(texts(tokens), texts(tokens.targets), strict=True)
    ]
    assert lengths.tolist() == expected
    short = torch.from_numpy(np.flatnonzero(lengths <= 20))
    wide, narrow = (objective.form(tokens, length, Draw(0, 0, short)).streams["body"].tokens for length in (32, 20))
    assert torch.equal(wide[:, :20], narrow)


def test_truncated_tokens_are_reported(build: Build, tokens: Any) -> None:
    objective = build("tlm", VOCABULARY)
    sizes = [len(a) + len(b) for a, b in zip(texts(tokens), texts(tokens.targets), strict=True)]
    (count,) = objective.skipped_documents(tokens, 32).values()
    assert count == sum(max(0, size - 28) for size in sizes) > 0
    assert set(objective.skipped_documents(tokens, 128).values()) == {0}


def test_without_languages_tokens_have_no_language(build: Build, tokens: Any) -> None:
    tokens.languages = None
    assert unmasked_examples(build("tlm", VOCABULARY), tokens).languages is None


def test_too_short_a_length_is_rejected(build: Build) -> None:
    with raises_problem(SpecError, "too-short", "dims.length", "5", "≥ 6"):
        build("tlm", VOCABULARY, 5)


def test_it_has_no_prompt(build: Build) -> None:
    assert build("tlm", VOCABULARY).prompt([5]) is None


def test_an_epoch_has_each_pair_once(build: Build, tokens: Any) -> None:
    assert build("tlm", VOCABULARY).example_count(tokens, 32) == 180


def test_frequencies_are_those_of_both_sides(build: Build, corpus: Corpus) -> None:
    train: Any = corpus([[2]])
    train.ids, train.targets = np.array([1, 1]), corpus([[1]])
    train.targets.ids = np.array([0])
    objective = build("tlm", Vocabulary(4, {"cls": 2, "sep": 2, "mask": 3}))
    shares = np.array([2, 3, 1, 1]) / 7  # one more of each, for smoothing
    targets = {"labels": torch.tensor([[1, IGNORED], [0, 1]])}
    assert objective.unigram_loss(train, targets) == pytest.approx(-(np.log(shares[0]) + 2 * np.log(shares[1])) / 3)
