"""Segments of documents, compared with loops."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tests.fixtures.problems import raises_problem

from paribus import PADDING, DataError, Draw, Shape, SpecError, Tokens, Vocabulary
from paribus_objective.segments import ChunkCache, Chunks, SegmentLayout, Span, cut_chunks, random_below, truncate

Corpus = Callable[[list[list[int]]], Tokens]

DOCUMENTS = [[3, 4, 5, 2, 1], [], [6], [2, 3], [4, 0, 4, 0], [0], [1] * 12, [30, 1, 1]]


def chunks(documents: list[list[int]], budget: int) -> list[list[int]]:
    """Sentences of each chunk by a loop; empty sentences are left out."""
    result, number = [], 0
    for document in documents:
        chunk: list[int] = []
        length = 0
        full = [size for size in document if size]
        for size in full:
            if length >= budget and len(chunk) >= 2:
                result.append(chunk)
                chunk, length = [], 0
            chunk.append(number)
            length += size
            number += 1
        result.append(chunk)
    return [chunk for chunk in result if len(chunk) >= 2]


def draw(count: int, epoch: int = 0) -> Draw:
    return Draw(0, epoch, torch.arange(count))


@pytest.mark.parametrize("budget", [1, 2, 5, 8, 100])
def test_chunks_equal_those_of_a_loop_over_sentences(budget: int, corpus: Corpus) -> None:
    result = cut_chunks(corpus(DOCUMENTS), budget)
    spans = zip(result.start.tolist(), result.stop.tolist(), strict=True)
    assert [list(range(start, stop)) for start, stop in spans] == chunks(DOCUMENTS, budget)


def test_empty_sentences_and_documents_are_left_out(corpus: Corpus) -> None:
    result = cut_chunks(corpus([[0], [2, 0, 3], [], [0, 0], [1, 1], []]), 10)
    assert result.bounds.tolist() == [0, 2, 5, 6, 7]
    assert result.documents.tolist() == [0, 2, 4]


def test_a_chunk_is_split_between_any_two_of_its_sentences(corpus: Corpus) -> None:
    result = cut_chunks(corpus([[2, 3, 4, 5]]), 100)
    splits = []
    for epoch in range(3000):
        a, b = result.split(draw(1, epoch))
        assert a.start == 0
        assert b.start == a.length
        assert a.length + b.length == 14
        splits.append(int(a.length[0]))
    assert stats.chisquare([splits.count(size) for size in (2, 5, 9)]).pvalue > 1e-4
    assert set(splits) == {2, 5, 9}


def test_negatives_are_uniform_over_other_documents_and_sentences(corpus: Corpus) -> None:
    result = cut_chunks(corpus([[2, 2], [2, 2], [2, 2, 2], [2]]), 100)
    a, b = Span(np.full(6000, 4), np.full(6000, 2)), Span(np.full(6000, 6), np.full(6000, 2))
    start = result.from_other_documents(a, b, draw(6000)).start
    counts = {sentence: int((start == sentence).sum()) for sentence in np.unique(start).tolist()}
    assert set(counts) == {0, 2, 8, 10, 12, 14}
    expected = np.array([1 / 6, 1 / 6, 1 / 9, 1 / 9, 1 / 9, 1 / 3]) * 6000
    assert stats.chisquare([counts[sentence] for sentence in sorted(counts)], expected).pvalue > 1e-4


def test_a_negative_segment_has_the_length_of_the_replaced_one(corpus: Corpus) -> None:
    result = cut_chunks(corpus([[3, 3], [1, 2, 3, 4]]), 100)
    for epoch in range(200):
        a, b = Span(np.array([0]), np.array([3])), Span(np.array([3]), np.array([3]))
        replacement = result.from_other_documents(a, b, draw(1, epoch))
        assert (int(replacement.start[0]), int(replacement.length[0])) in {(6, 3), (7, 5), (9, 3), (12, 4)}


def test_a_negative_segment_starts_with_enough_text_left(corpus: Corpus) -> None:
    result = cut_chunks(corpus([[9, 9], [1, 2, 3, 4]]), 100)
    for length, starts in ((4, {18, 19, 21, 24}), (5, {18, 19, 21}), (8, {18, 19}), (10, {18}), (99, {18})):
        a, b = Span(np.full(200, 0), np.full(200, 9)), Span(np.full(200, 9), np.full(200, length))
        replacement = result.from_other_documents(a, b, draw(200))
        assert set(replacement.start.tolist()) == starts
        assert (replacement.length >= min(length, 10)).all()


def bert(a: int, b: int, limit: int) -> tuple[int, int]:
    """`truncate_seq_pair` of BERT's create_pretraining_data.py."""
    while a + b > limit:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


@pytest.mark.parametrize("limit", [2, 3, 7, 12])
def test_pairs_are_truncated_to_the_lengths_of_berts_loop(limit: int) -> None:
    lengths = np.array([(a, b) for a in range(1, 15) for b in range(1, 15)])
    a, b = Span(np.full(len(lengths), 100), lengths[:, 0]), Span(np.full(len(lengths), 200), lengths[:, 1])
    truncated = truncate(a, b, limit, draw(len(lengths)))
    assert [(int(x), int(y)) for x, y in zip(truncated[0].length, truncated[1].length, strict=True)] == [
        bert(int(x), int(y), limit) for x, y in lengths
    ]
    for whole, part in zip((a, b), truncated, strict=True):
        assert (part.length >= 1).all()
        assert (part.start >= whole.start).all()
        assert (part.start + part.length <= whole.start + whole.length).all()


def test_a_truncated_segment_keeps_any_part() -> None:
    a, b = Span(np.full(5000, 0), np.full(5000, 9)), Span(np.full(5000, 50), np.full(5000, 5))
    truncated_a, truncated_b = truncate(a, b, 10, draw(5000))
    assert stats.chisquare(np.bincount(truncated_a.start, minlength=5)).pvalue > 1e-4
    assert (truncated_b.start == 50).all()


def test_draws_below_individual_limits_are_uniform() -> None:
    high = np.arange(1, 6).repeat(3000)
    values = random_below(draw(len(high)), "x", high)
    for bound in range(1, 6):
        counts = np.bincount(values[high == bound])
        assert len(counts) == bound
        assert bound == 1 or stats.chisquare(counts).pvalue > 1e-4


@pytest.fixture
def layout(vocabulary: Vocabulary) -> SegmentLayout:
    return SegmentLayout(Shape(8, 2, 4, 16, 100, 1), vocabulary, "nsp")


def test_a_pair_has_cls_and_sep_and_is_padded(layout: SegmentLayout, corpus: Corpus) -> None:
    a, b = Span(np.array([0, 7]), np.array([2, 5])), Span(np.array([4, 2]), np.array([3, 4]))
    stream = layout(corpus([[20]]), a, b, 12)
    assert stream.tokens.tolist() == [
        [1, 100, 101, 2, 104, 105, 106, 2, 0, 0, 0, 0],
        [1, 107, 108, 109, 110, 111, 2, 102, 103, 104, 105, 2],
    ]
    assert stream.segments is not None
    assert stream.segments.tolist() == [[0] * 4 + [1] * 4 + [0] * 4, [0] * 7 + [1] * 5]
    assert stream.special is not None
    assert stream.special.tolist()[0] == [place in {0, 3, 7, 8, 9, 10, 11} for place in range(12)]
    assert stream.documents is not None
    assert stream.documents.tolist() == [[0] * 8 + [PADDING] * 4, [0] * 12]
    assert stream.positions is not None
    assert stream.positions.tolist() == [list(range(12))] * 2


def test_each_segment_has_the_language_of_its_document(layout: SegmentLayout, corpus: Corpus) -> None:
    tokens = corpus([[5, 5], [4], [6]])
    a, b = Span(np.array([0, 11]), np.array([2, 3])), Span(np.array([5, 16]), np.array([3, 2]))
    assert layout(tokens, a, b, 10).languages is None
    tokens.languages = np.array([3, 0, 5])
    languages = layout(tokens, a, b, 10).languages
    assert languages is not None
    assert languages.tolist() == [[3] * 10, [0] * 5 + [5] * 5]


def test_without_a_pad_token_padding_is_invisible(corpus: Corpus) -> None:
    layout = SegmentLayout(Shape(8, 2, 4, 16, 100, 1), Vocabulary(9, {"cls": 7, "sep": 8}), "nsp")
    stream = layout(corpus([[20]]), Span(np.array([0]), np.array([1])), Span(np.array([1]), np.array([1])), 7)
    assert stream.tokens.tolist() == [[7, 100, 8, 101, 8, 8, 8]]
    assert stream.documents is not None
    assert stream.documents.tolist() == [[0] * 5 + [PADDING] * 2]


def test_a_length_too_short_for_a_pair_is_rejected(vocabulary: Vocabulary) -> None:
    with raises_problem(SpecError, "too-short", "dims.length", "≥ 5", "4"):
        SegmentLayout(Shape(8, 2, 4, 4, 100, 1), vocabulary, "nsp")


@pytest.mark.parametrize("missing", ["cls", "sep"])
def test_a_tokenizer_without_cls_or_sep_is_refused(missing: str, vocabulary: Vocabulary) -> None:
    has = {name: token for name, token in vocabulary.specials.items() if name != missing}
    with raises_problem(SpecError, "missing-special-token", missing):
        SegmentLayout(Shape(8, 2, 4, 16, 100, 1), Vocabulary(100, has), "sop")


def test_chunks_are_cached_for_each_corpus_and_length(corpus: Corpus) -> None:
    cache = ChunkCache("nsp", minimum_documents=2)
    corpus_a, corpus_b = corpus([[2, 2], [2, 2]]), corpus([[2, 2], [2, 2]])
    assert cache(corpus_a, 20) is cache(corpus_a, 20)
    assert cache(corpus_a, 20) is not cache(corpus_b, 20)
    assert cache(corpus_a, 20) is not cache(corpus_a, 5)


@pytest.mark.parametrize("copy_function", [copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])
def test_a_copy_of_the_cache_holds_no_corpus(copy_function: Callable[[ChunkCache], Any], corpus: Corpus) -> None:
    cache = ChunkCache("nsp", minimum_documents=2)
    tokens = corpus([[2, 2], [2, 2]])
    cached = cache(tokens, 20)
    copied = copy_function(cache)
    assert isinstance(copied, ChunkCache)
    assert (copied.component, copied.minimum_documents) == ("nsp", 2)
    fresh = copied(tokens, 20)
    assert isinstance(fresh, Chunks)
    assert fresh is not cached


def test_a_corpus_of_one_document_has_no_negatives(corpus: Corpus) -> None:
    with raises_problem(DataError, "too-few-documents", "corpus", "1"):
        ChunkCache("nsp", minimum_documents=2)(corpus([[2, 2, 2], [], [0]]), 20)


def test_a_corpus_without_two_sentences_in_a_document_has_no_pairs(corpus: Corpus) -> None:
    with raises_problem(DataError, "too-few-sentences", "corpus"):
        ChunkCache("sop", minimum_documents=1)(corpus([[2], [3, 0], [4]]), 20)
    assert DataError.exit_code == 4
