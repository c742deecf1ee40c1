"""Comparison of answers: by position and by text, against SQuAD's script as it is written."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus import DataError, Draw, ForwardPass, Labels, Objective, Tokens, TrainingExamples, Vocabulary
from paribus_objective.answers import TEXTS, best_scores, match_positions, normalized, read_answers
from paribus_objective.extraction import best_span

Build = Callable[..., Objective]
Corpus = Callable[[list[list[int]]], Tokens]

ACCEPTED: list[list[list[str]]] = [[["ann"], ["bo"]], [["ann", "bo"]], [[]]]
SPANS = [[-1, -1], [0, 0], [0, 3], [2, 5], [3, 3], [4, 9], [8, 9]]


def squad_f1(found: list[Any], gold: list[Any]) -> float:
    """`compute_f1` of SQuAD's script."""
    if not found or not gold:
        return float(found == gold)
    same = sum((Counter(found) & Counter(gold)).values())
    if not same:
        return 0.0
    precision, recall = same / len(found), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def places(span: list[int]) -> list[int]:
    return list(range(span[0], span[1] + 1)) if span[0] >= 0 else []


@pytest.mark.parametrize("count", [1, 3])
def test_positions_are_compared_with_the_best_answer(count: int) -> None:
    draw = random.Random(0)
    for found in SPANS[1:]:
        accepted = [draw.choice(SPANS) for _ in range(count)]
        exact, f1, null = match_positions(torch.tensor([found]), torch.tensor([accepted]))
        assert float(exact) == float(found in accepted)
        assert float(f1) == pytest.approx(max(squad_f1(places(found), places(gold)) for gold in accepted))
        assert float(null) == float([-1, -1] in accepted)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([2, 50, -1], [(50,)]),  # the mayor,
        ([2], []),  # The
        ([-1, -2], []),  # (a
        ([50, -1, -60], [(50, 60)]),  # twenty-one
        ([1, -50, -1], [(50,)]),  # "word"
        ([50, 1, 60], [(50,), (60,)]),  # one - two
        ([2, -1, -50], [(2, 50)]),  # the-er: an article within a word is a part of it
    ],
)
def test_case_punctuation_and_articles_are_left_out(numbers: list[int], words: list[tuple[int, ...]]) -> None:
    assert normalized(numbers) == words


def test_the_best_of_several_texts_counts() -> None:
    assert best_scores([(5,), (6,)], [[(5,)], [(5,), (7,)]]) == pytest.approx((0, 2 / 3))
    assert best_scores([(5,)], [[], [(5,)]]) == (1.0, 1.0)
    assert best_scores([], [[], [(5,)]]) == (0.0, 0.0)  # an answer without words does not count beside another
    assert best_scores([], [[]]) == (1.0, 1.0)
    assert best_scores([(5,)], [[]]) == (0.0, 0.0)


@pytest.fixture
def questions(corpus: Corpus) -> Tokens:
    """Three questions on one context of six words with 1 to 3 tokens each: `the Ann ( Ann ) Bo`."""
    tokens: Any = corpus([[2], [1, 1], [3]])
    contexts: Any = corpus([[1, 2, 1, 2, 1, 3]] * 3)
    tokens.ids, contexts.ids = tokens.ids % 40 + 10, contexts.ids % 40 + 40
    tokens.targets = contexts
    numbers = [TEXTS, -2, 70, 1, -70, -1, 80]
    labels = [[1, 1, 5, 5, *numbers], [3, 5, *numbers], [-1, -1, *numbers]]
    values = [value for row in labels for value in row]
    tokens.labels = Labels(np.array(values, float), np.cumsum([0, *map(len, labels)]))
    return tokens  # type: ignore[no-any-return]  # a corpus of the fixture


def test_answers_are_read_from_labels(questions: Tokens) -> None:
    answers = read_answers(questions)
    documents = np.arange(3)
    assert answers.first(documents).tolist() == [[1, 1], [3, 5], [-1, -1]]
    assert answers.accepted(documents).tolist() == [[[1, 1], [5, 5]], [[3, 5]] * 2, [[-1, -1]] * 2]
    assert answers.numbers(documents[:2], np.array([1, 4])).tolist() == [70, -1]
    assert (answers.has_texts, answers.most, answers.longest) == (True, 2, 3)


def test_the_same_text_at_another_place_is_right(
    build: Build, vocabulary: Vocabulary, questions: Tokens, passed: Callable[[TrainingExamples], ForwardPass]
) -> None:
    """The metrics equal those of the words of the predicted span, written out."""
    texts = ["the", "ann", "", "ann", "", "bo"]
    for seed in range(4):
        torch.manual_seed(seed)
        objective: Any = build("extract", vocabulary, 23)
        with torch.no_grad():
            objective.head.weight.normal_(generator=torch.Generator().manual_seed(seed))
        assert objective.example_count(questions, 23) == 3
        run = passed(objective.form(questions, 23, Draw(0, 0, torch.arange(3))))
        metrics = objective.metrics()
        objective.update_metrics(run, metrics)
        best = best_span(objective._scores(run), 30)
        expected: list[tuple[float, float]] = []
        for number, accepted in enumerate(ACCEPTED):
            span = range(int(best.start[number]), int(best.end[number]) + 1)
            units = sorted({int(run.targets["words"][number, place]) for place in span})
            found = [] if best.null_score[number] > best.score[number] else [texts[unit] for unit in units]
            found = [text for text in found if text not in ("", "the")]
            expected.append((float(found in accepted), max(squad_f1(found, gold) for gold in accepted)))
        for column, name in enumerate(("exact", "f1")):
            assert float(metrics[name].compute()) == pytest.approx(sum(row[column] for row in expected) / 3)


def test_invalid_labels_are_refused(questions: Tokens) -> None:
    assert questions.labels is not None
    values = questions.labels.values.tolist()
    for changed in ([7, *values[1:]], [3, 1, *values[2:]]):
        questions.labels = Labels(np.array(changed), questions.labels.documents)
        with raises_problem(DataError, "labels", "document 0", "6"):
            read_answers(questions)
    bounds = questions.labels.documents
    questions.labels = Labels(np.array([*values[:-1]]), np.array([*bounds[:-1], bounds[-1] - 1]))
    with raises_problem(DataError, "labels", "document 2"):
        read_answers(questions)
