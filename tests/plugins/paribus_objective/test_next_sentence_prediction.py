"""Next sentence prediction: B follows A or is from another document, equally often."""

from collections.abc import Callable, Sequence

import pytest
import torch
from scipy import stats
from tests.fixtures.problems import raises_problem

from paribus import DataError, Draw, Objective, Tokens, TrainingExamples, Vocabulary

Build = Callable[..., Objective]
Corpus = Callable[[Sequence[Sequence[int]]], Tokens]

LIMIT = 32  # length of the model
SENTENCES = [[3, 4, 5, 2, 1, 7, 3] * 4, [6, 2, 3], [4, 4] * 6, [2, 9, 3, 1, 5] * 3, [1, 1], [5]]


@pytest.fixture
def nsp(build: Build, vocabulary: Vocabulary) -> Objective:
    return build("nsp", vocabulary)


def formed(nsp: Objective, tokens: Tokens, length: int, epochs: int) -> list[TrainingExamples]:
    index = torch.arange(nsp.example_count(tokens, length))
    return [nsp.form(tokens, length, Draw(0, epoch, index)) for epoch in range(epochs)]


def sides(batch: TrainingExamples, row: int) -> tuple[list[int], list[int]]:
    """The ids of A and of B."""
    body = batch.streams["body"]
    assert body.segments is not None
    assert body.special is not None
    text = ~body.special[row]
    tokens, segments = body.tokens[row][text], body.segments[row][text]
    return tokens[segments == 0].tolist(), tokens[segments == 1].tolist()


def document(tokens: Tokens, token: int) -> int:
    """The document of an id: here ids count up from 100."""
    starts = tokens.sentences[tokens.documents]
    return next(number for number in range(len(starts) - 1) if starts[number] <= token - 100 < starts[number + 1])


@pytest.mark.parametrize("length", [12, 32, 400])
def test_segments_are_runs_of_text_and_negatives_of_another_document(
    length: int, nsp: Objective, corpus: Corpus
) -> None:
    tokens = corpus(SENTENCES)
    for batch in formed(nsp, tokens, length, 20):
        for row, label in enumerate(batch.targets["labels"].tolist()):
            a, b = sides(batch, row)
            assert 1 <= len(a) <= len(a) + len(b) <= length - 3
            for side in (a, b):
                assert side == list(range(side[0], side[0] + len(side)))
                assert document(tokens, side[0]) == document(tokens, side[-1])
            assert (document(tokens, a[0]) != document(tokens, b[0])) == (label == 1)


def test_examples_of_a_short_batch_are_whole(nsp: Objective, corpus: Corpus) -> None:
    tokens, limit = corpus(SENTENCES), LIMIT
    lengths = nsp.example_lengths(tokens, limit)
    assert lengths is not None
    assert lengths.max() <= limit
    for epoch, batch in enumerate(formed(nsp, tokens, limit, 20)):
        for row, length in enumerate(lengths.tolist()):
            alone = nsp.form(tokens, length, Draw(0, epoch, torch.tensor([row])))
            assert sides(alone, 0) == sides(batch, row)


def test_positives_begin_where_the_first_segment_ends(nsp: Objective, corpus: Corpus) -> None:
    tokens = corpus(SENTENCES)
    starts = set((tokens.sentences + 100).tolist())
    for batch in formed(nsp, tokens, 400, 20):  # nothing is truncated at this length
        for row, label in enumerate(batch.targets["labels"].tolist()):
            a, b = sides(batch, row)
            assert {a[0], a[-1] + 1, b[0], b[-1] + 1} <= starts
            assert label == 1 or a[-1] + 1 == b[0]


def test_both_labels_are_equally_likely(nsp: Objective, corpus: Corpus) -> None:
    labels = torch.cat([batch.targets["labels"] for batch in formed(nsp, corpus(SENTENCES), 12, 600)])
    assert len(labels) > 2000
    assert stats.binomtest(int(labels.sum()), len(labels)).pvalue > 1e-4


def test_only_ends_of_documents_leave_positions_empty(nsp: Objective, corpus: Corpus) -> None:
    tokens = corpus([[5] * 100, [3, 3]])
    for batch in formed(nsp, tokens, 32, 5):
        documents = batch.streams["body"].documents
        assert documents is not None
        full = (documents == 0).all(1)
        positive = batch.targets["labels"] == 0
        assert full[positive].sum() >= positive.sum() - 2


def test_one_document_is_not_enough(nsp: Objective, corpus: Corpus) -> None:
    tokens = corpus([[3, 3, 3]])
    with raises_problem(DataError, "too-few-documents", "corpus"):
        nsp.example_count(tokens, 32)
    with raises_problem(DataError, "too-few-documents", "corpus"):
        nsp.form(tokens, 32, Draw(0, 0, torch.arange(1)))
