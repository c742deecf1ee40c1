"""Tagging: a label for each word, at its first piece."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus import IGNORED, DataError, Draw, Labels, Objective, Tokens, Vocabulary
from paribus_objective.windows import word_runs

Build = Callable[..., Objective]
Corpus = Callable[[list[list[int]]], Tokens]

DOCUMENTS = [[1, 3, 2], [4, 4, 4, 1], [30, 2], [1]]


def with_tags(tokens: Tokens) -> Tokens:
    tokens.labels = Labels(np.arange(float(len(tokens.sentences) - 1)), np.asarray(tokens.documents))
    return tokens


@pytest.fixture
def tag(build: Build, vocabulary: Vocabulary) -> Any:
    return build("tag", vocabulary, 12, classes=10)


def test_every_word_is_in_one_example_and_no_example_exceeds_the_length(corpus: Corpus) -> None:
    for limit in (1, 4, 7, 8, 100):
        runs = word_runs(corpus(DOCUMENTS), limit)
        words: list[int] = []
        for document, start, stop in zip(*runs, strict=True):
            sizes = [size for sentences in DOCUMENTS for size in sentences][start:stop]
            assert sum(sizes) <= limit or len(sizes) == 1
            words.extend(range(start, stop))
            words_before = sum(len(sentences) for sentences in DOCUMENTS[:document])
            assert words_before <= start < stop <= words_before + len(DOCUMENTS[document])
        assert words == list(range(10))


def test_a_run_fills_the_available_positions(corpus: Corpus) -> None:
    runs = word_runs(corpus(DOCUMENTS), 8)
    assert list(zip(runs.start.tolist(), runs.stop.tolist(), strict=True)) == [
        (0, 3),
        (3, 5),
        (5, 7),
        (7, 8),
        (8, 9),
        (9, 10),
    ]


def test_only_the_first_piece_of_a_word_has_its_label(tag: Any, corpus: Corpus) -> None:
    tokens = with_tags(corpus(DOCUMENTS))
    assert tag.example_count(tokens, 12) == 6  # of at most ten tokens
    formed = tag.form(tokens, 12, Draw(0, 0, torch.arange(6)))
    stream, labels = formed.streams["body"].tokens.tolist(), formed.targets["labels"].tolist()
    assert stream[0] == [1, *range(100, 106), 2, 0, 0, 0, 0]
    assert labels[0] == [IGNORED, 0, 1, IGNORED, IGNORED, 2, *[IGNORED] * 6]
    pairs = [pair for row, row_labels in zip(stream, labels, strict=True) for pair in zip(row, row_labels, strict=True)]
    labelled_tokens = {label: token for token, label in pairs if label != IGNORED}
    assert labelled_tokens == {word: 100 + int(tokens.sentences[word]) for word in range(10)}
    assert tag.example_lengths(tokens, 12).tolist() == [sum(token != 0 for token in row) for row in stream]
    assert tag.skipped_documents(tokens, 12) == {"tokens truncated from words longer than the sequence": 20}
    long = next(row for row in stream if 100 + int(tokens.sentences[7]) in row)
    assert long == [1, *range(119, 129), 2]  # a long word is truncated and keeps its label


def test_ignored_tags_of_the_corpus_are_ignored(tag: Any, corpus: Corpus) -> None:
    tokens = with_tags(corpus([[1, 2], [3]]))
    assert tokens.labels is not None
    tokens.labels.values[1] = IGNORED
    assert tag.example_count(tokens, 12) == 2
    targets = tag.form(tokens, 12, Draw(0, 0, torch.arange(2))).targets
    labels = targets["labels"]
    assert sorted(labels[labels != IGNORED].tolist()) == [0, 2]
    assert tag.unigram_loss(tokens, targets) == pytest.approx(-np.log(2 / 12))


def test_tags_must_match_the_words(tag: Any, corpus: Corpus) -> None:
    tokens = corpus([[1, 2], [3]])
    tokens.labels = Labels(np.zeros(4), np.array([0, 2, 4]))
    with raises_problem(DataError, "labels", "corpus", "1", "2"):
        tag.example_count(tokens, 12)
    tokens.labels = Labels(np.array([0.0, 10.0, 1.0]), np.array([0, 2, 3]))
    with raises_problem(DataError, "labels", "10"):
        tag.example_count(tokens, 12)
