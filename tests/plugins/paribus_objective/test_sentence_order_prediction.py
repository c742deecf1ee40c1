"""Sentence order prediction: two segments in order or swapped, equally often."""

from collections.abc import Callable, Sequence

import pytest
import torch
from scipy import stats
from tests.fixtures.problems import raises_problem

from paribus import DataError, Draw, Objective, Tokens, TrainingExamples, Vocabulary

Build = Callable[..., Objective]
Corpus = Callable[[Sequence[Sequence[int]]], Tokens]

SENTENCES = [[3, 4, 5, 2, 1, 7, 3] * 4, [6, 2, 3], [4, 4] * 6, [2, 9, 3, 1, 5] * 3, [1, 1], [5]]


@pytest.fixture
def sop(build: Build, vocabulary: Vocabulary) -> Objective:
    return build("sop", vocabulary)


def batches(sop: Objective, tokens: Tokens, length: int, epochs: int) -> list[TrainingExamples]:
    index = torch.arange(sop.example_count(tokens, length))
    return [sop.form(tokens, length, Draw(0, epoch, index)) for epoch in range(epochs)]


def sides(batch: TrainingExamples, row: int) -> tuple[list[int], list[int]]:
    """The ids of A and of B."""
    body = batch.streams["body"]
    assert body.segments is not None
    assert body.special is not None
    text = ~body.special[row]
    tokens, segments = body.tokens[row][text], body.segments[row][text]
    return tokens[segments == 0].tolist(), tokens[segments == 1].tolist()


@pytest.mark.parametrize("length", [12, 400])
def test_labels_are_the_order_of_the_segments(length: int, sop: Objective, corpus: Corpus) -> None:
    tokens = corpus(SENTENCES)
    ends = (tokens.sentences[tokens.documents] + 100).tolist()
    for batch in batches(sop, tokens, length, 20):
        for row, label in enumerate(batch.targets["labels"].tolist()):
            a, b = sides(batch, row)
            assert (a[0] > b[0]) == (label == 1)
            earlier, later = (b, a) if label else (a, b)
            assert all(side == list(range(side[0], side[0] + len(side))) for side in (a, b))
            assert not any(earlier[0] < end <= later[-1] for end in ends)  # of one document
            assert earlier[-1] < later[0]


def test_swapping_only_reorders_tokens(sop: Objective, corpus: Corpus) -> None:
    tokens = corpus([[3, 4], [5, 2]])  # a chunk has one split, so epochs differ in the label alone
    orders: dict[int, set[tuple[tuple[int, ...], tuple[int, ...]]]] = {0: set(), 1: set()}
    for batch in batches(sop, tokens, 32, 20):
        a, b = sides(batch, 0)
        orders[int(batch.targets["labels"][0])].add((tuple(a), tuple(b)))
    assert orders[0] == {((100, 101, 102), (103, 104, 105, 106))}
    assert orders[1] == {((103, 104, 105, 106), (100, 101, 102))}


def test_both_orders_are_equally_likely(sop: Objective, corpus: Corpus) -> None:
    labels = torch.cat([batch.targets["labels"] for batch in batches(sop, corpus(SENTENCES), 12, 600)])
    assert len(labels) > 2000
    assert stats.binomtest(int(labels.sum()), len(labels)).pvalue > 1e-4


def test_one_document_of_two_sentences_is_enough_and_one_sentence_is_not(sop: Objective, corpus: Corpus) -> None:
    assert sop.example_count(corpus([[3, 3]]), 32) == 1
    with raises_problem(DataError, "too-few-sentences", "corpus"):
        sop.example_count(corpus([[3], [4]]), 32)
