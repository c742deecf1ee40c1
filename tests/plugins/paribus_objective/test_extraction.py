"""Extraction of answers: windows, labels, scores and predictions, compared with loops."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus import (
    DataError,
    Draw,
    ForwardPass,
    Labels,
    Load,
    Objective,
    SpecError,
    Tokens,
    TrainingExamples,
    Vocabulary,
)
from paribus_objective.extraction import best_span
from paribus_objective.windows import context_windows

Build = Callable[..., Objective]
Corpus = Callable[[list[list[int]]], Tokens]
Passed = Callable[[TrainingExamples], ForwardPass]

QUESTIONS, CONTEXTS = [[3, 2], [4], [30], [2]], [[2, 1, 3, 1], [1] * 40, [5] * 3, [2, 2]]
ANSWERS = [[1.0, 2.0], [20.0, 22.0], [-1.0, -1.0], [0.0, 0.0]]


@pytest.fixture
def questions(corpus: Corpus) -> Tokens:
    tokens, contexts = corpus(QUESTIONS), corpus(CONTEXTS)
    tokens.ids = tokens.ids % 50
    contexts.ids = contexts.ids - 70
    tokens.targets = contexts
    tokens.labels = Labels(np.array(ANSWERS).reshape(-1), np.arange(5) * 2)
    return tokens


@pytest.fixture
def extract(build: Build, vocabulary: Vocabulary) -> Any:
    return build("extract", vocabulary, 23, max_question_length=6, stride=7)


def pieces(size: int, room: int, stride: int) -> list[tuple[int, int]]:
    """BERT's loop over a document's spans."""
    spans, start = [], 0
    while start < size:
        length = min(size - start, room)
        spans.append((start, length))
        if start + length == size:
            break
        start += min(length, stride)
    return spans


@pytest.mark.parametrize("stride", [1, 3, 7, 100])
def test_windows_equal_those_of_berts_loop(stride: int, questions: Tokens) -> None:
    windows = context_windows(questions, 20, 6, stride)
    for number, (question, context) in enumerate(zip(QUESTIONS, CONTEXTS, strict=True)):
        is_document = windows.document == number
        question_length = min(sum(question), 6)
        assert (windows.question_length[is_document] == question_length).all()
        spans = list(zip(windows.start[is_document].tolist(), windows.length[is_document].tolist(), strict=True))
        assert spans == pieces(sum(context), 20 - question_length, stride)


def test_labels_are_the_positions_of_the_answer_or_the_first_position(extract: Any, questions: Tokens) -> None:
    assert questions.targets is not None
    count = extract.example_count(questions, 23)
    formed = extract.form(questions, 23, Draw(0, 0, torch.arange(count)))
    bounds, documents = questions.targets.sentences, questions.targets.documents
    whole_count = 0
    for row in range(count):
        number = int(formed.targets["document"][row])
        tokens, (start, end) = formed.streams["body"].tokens[row].tolist(), formed.targets["labels"][row].tolist()
        words = [int(word) for word in ANSWERS[number]]
        if words[0] >= 0 and end:
            ends = bounds[documents[number] + words[0]], bounds[documents[number] + words[1] + 1]
            assert tokens[start : end + 1] == questions.targets.ids[ends[0] : ends[1]].tolist()
            whole_count += 1
        else:
            assert (start, end) == (0, 0)
            inside = set(questions.targets.ids[bounds[documents[number] + words[0]] :][:3].tolist())
            assert words[0] < 0 or not inside <= set(tokens)
    assert whole_count >= 3
    assert extract.example_lengths(questions, 23).tolist() == (formed.streams["body"].documents >= 0).sum(1).tolist()


def test_skipped_answers_and_truncated_tokens_are_counted(
    build: Build, vocabulary: Vocabulary, questions: Tokens
) -> None:
    """With windows of four context tokens, the answer of three words from the 21st is in none."""
    reasons = (
        "answers that are not whole in any window",
        "tokens truncated from questions longer than max_question_length",
    )
    for stride, answers in ((1, 0), (4, 1)):
        narrow: Any = build("extract", vocabulary, 11, max_question_length=4, stride=stride)
        assert narrow.skipped_documents(questions, 11) == {reasons[0]: answers, reasons[1]: 27}
    wide: Any = build("extract", vocabulary, 128)
    assert set(wide.skipped_documents(questions, 128).values()) == {0}


def test_only_the_first_token_and_the_context_are_scored(extract: Any, questions: Tokens, passed: Passed) -> None:
    count = extract.example_count(questions, 23)
    formed = extract.form(questions, 23, Draw(0, 0, torch.arange(count)))
    segments, documents = formed.streams["body"].segments, formed.streams["body"].documents
    for row in range(count):
        ends = (documents[row] >= 0).sum() - 1  # the last token is not of the context
        expected = [place == 0 or (bool(segments[row, place]) and place < ends) for place in range(23)]
        assert formed.targets["candidates"][row].tolist() == expected
    run = passed(formed)
    scores = extract.head(run.hidden("body"))
    total = torch.zeros((), dtype=torch.float64)
    for row in range(count):
        candidates = [place for place in range(23) if formed.targets["candidates"][row, place]]
        for side in (0, 1):
            index = candidates.index(int(formed.targets["labels"][row, side]))
            total -= scores[row, candidates, side].log_softmax(0)[index]
    term = extract(run)["loss"]
    torch.testing.assert_close(term.total, total, rtol=0, atol=1e-10)
    assert int(term.count) == 2 * count
    wider = extract(passed(extract.form(questions, 40, Draw(0, 0, torch.arange(count)))))["loss"]
    torch.testing.assert_close(wider.total, total, rtol=0, atol=1e-10)  # padding changes nothing


@pytest.mark.parametrize("max_length", [1, 3, 30])
def test_the_predicted_span_is_the_best_of_the_allowed_length(max_length: int) -> None:
    torch.manual_seed(0)
    scores = torch.randn(6, 2, 9)
    scores[3, :, 5:] = torch.finfo(torch.float32).min
    result = best_span(scores, max_length)
    for row in range(6):
        spans = [(a, b) for a in range(1, 9) for b in range(a, min(a + max_length, 9))]
        best = max(spans, key=lambda span: float(scores[row, 0, span[0]]) + float(scores[row, 1, span[1]]))
        assert (int(result.start[row]), int(result.end[row])) == best
        assert float(result.null_score[row]) == pytest.approx(float(scores[row, :, 0].sum()))


def test_metrics_of_perfect_and_of_empty_predictions(extract: Any, questions: Tokens, passed: Passed) -> None:
    count = extract.example_count(questions, 23)
    formed = extract.form(questions, 23, Draw(0, 0, torch.arange(count)))
    perfect = torch.full((count, 23, 2), -9.0, dtype=torch.float64)
    for row, ends in enumerate(formed.targets["labels"].tolist()):
        for side, place in enumerate(ends):
            perfect[row, place, side] = 9.0 if place else 0.0
    null = torch.zeros_like(perfect)
    null[:, 0] = 5.0
    for scores, expected in ((perfect, 1.0), (null, 1 / 4)):
        extract.logits = lambda hidden, unembed, scores=scores: scores
        metrics = extract.metrics()
        extract.update_metrics(passed(formed), metrics)
        assert {name: float(metric.compute()) for name, metric in metrics.items()} == {
            "exact": expected,
            "f1": expected,
        }


def test_frequencies_are_those_of_unanswerable_questions(extract: Any, questions: Tokens) -> None:
    count = extract.example_count(questions, 23)
    targets = extract.form(questions, 23, Draw(0, 0, torch.arange(count))).targets
    is_null = (targets["labels"] == 0).all(1)
    share = (int(is_null.sum()) + 1) / (count + 2)
    nats = [
        -math.log(share) if is_null[row] else -math.log((1 - share) / (int(targets["candidates"][row].sum()) - 1))
        for row in range(count)
    ]
    assert extract.unigram_loss(questions, targets) == pytest.approx(sum(nats) / count)
    two = {name: value[:2] for name, value in targets.items()}  # the evaluated examples alone
    assert extract.unigram_loss(questions, two) == pytest.approx(sum(nats[:2]) / 2)


@pytest.mark.parametrize(
    ("answer", "values"),
    [
        ([1.0, 4.0], ("0", "1", "4", "≤")),
        ([2.0, 1.0], ("0", "2", "1")),
        ([-1.0, 1.0], ("0", "-1", "1")),
    ],
)
def test_an_answer_that_is_not_in_its_context_is_refused(
    answer: list[float], values: tuple[str, ...], extract: Any, questions: Tokens
) -> None:
    questions.labels = Labels(np.array([answer, *ANSWERS[1:]]).reshape(-1), np.arange(5) * 2)
    with raises_problem(DataError, "labels", *values):
        extract.example_count(questions, 23)


def test_answers_have_two_ends(extract: Any, questions: Tokens) -> None:
    questions.labels = Labels(np.zeros(7), np.array([0, 2, 3, 5, 7]))
    with raises_problem(DataError, "labels", "corpus", "1"):
        extract.example_count(questions, 23)


def test_a_length_too_short_for_question_and_context_is_rejected(build: Build, vocabulary: Vocabulary) -> None:
    with raises_problem(SpecError, "too-short", "dims.length", "≥ 5", "4"):
        build("extract", vocabulary, 4)
    build("extract", vocabulary, 5)


def test_the_head_runs_on_every_position(extract: Any) -> None:
    assert extract.cost(Load(23, 23, head_positions=extract.head_positions(23))).flops == 2 * 23 * 8 * 2


@pytest.mark.parametrize("copy_function", [copy.deepcopy, lambda once: pickle.loads(pickle.dumps(once))])
def test_a_copy_of_the_cache_holds_no_corpus(
    copy_function: Callable[[Any], Any], extract: Any, questions: Tokens
) -> None:
    windows = extract.windows(questions)
    assert extract.windows(questions) is windows
    copied_cache = copy_function(extract.windows)
    assert copied_cache(questions) is not windows
    assert all((copied == original).all() for copied, original in zip(copied_cache(questions), windows, strict=True))
