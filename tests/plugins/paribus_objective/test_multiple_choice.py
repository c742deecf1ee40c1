"""Multiple choice: the layout of choices, against loops, and what choices see of each other."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch.nn import functional

from paribus import (
    PADDING,
    DataError,
    Draw,
    ForwardPass,
    Labels,
    Objective,
    SpecError,
    Tokens,
    TrainingExamples,
    Vocabulary,
)

Build = Callable[..., Objective]
Corpus = Callable[[list[list[int]]], Tokens]
Passed = Callable[[TrainingExamples], ForwardPass]

CONTEXTS, CHOICES, RIGHT = [[2, 1], [9], [1]], [[1, 2, 3], [4, 1, 1], [8, 9, 2]], [2, 0, 1]
MARKS = {"choose": ("cls", "sep", "sep"), "choose-causal": ("bos", "sep", "cls")}
LENGTH, LIMIT = 32, 10  # of an example, and of each of three choices


@pytest.fixture
def questions(corpus: Corpus) -> Tokens:
    tokens: Any = corpus(CONTEXTS)
    choices: Any = corpus(CHOICES)
    tokens.ids, choices.ids = tokens.ids % 30 + 10, choices.ids % 40 + 40
    tokens.targets = choices
    tokens.labels = Labels(np.array(RIGHT, float), np.arange(4))
    return tokens  # type: ignore[no-any-return]  # a corpus of the fixture


def cut(context: list[int], choice: list[int]) -> tuple[list[int], list[int]]:
    """BERT's loop: the last token of the longer text is removed, of the choice if both are as long."""
    context, choice = list(context), list(choice)
    while len(context) + len(choice) > LIMIT - 3:
        (context if len(context) > len(choice) else choice).pop()
    return context, choice


def by_hand(tokens: Any, question: int, specials: dict[str, int], marks: tuple[str, str, str]) -> list[list[int]]:
    """The sequence of each choice of a question."""
    start, separator, end = (specials[mark] for mark in marks)
    words = tokens.sentences[tokens.documents[question] : tokens.documents[question + 1] + 1]
    context = tokens.ids[words[0] : words[-1]].tolist()
    sequences = []
    for number in range(3):
        sentence = int(tokens.targets.documents[question]) + number
        choice = tokens.targets.ids[
            tokens.targets.sentences[sentence] : tokens.targets.sentences[sentence + 1]
        ].tolist()
        a, b = cut(context, choice)
        sequences.append([start, *a, separator, *b, end])
    return sequences


@pytest.mark.parametrize("name", MARKS)
def test_each_choice_is_a_document_with_its_context(
    name: str, build: Build, vocabulary: Vocabulary, questions: Tokens, passed: Passed
) -> None:
    objective: Any = build(name, vocabulary, LENGTH, choices=3)
    assert objective.example_count(questions, LENGTH) == 3
    formed = objective.form(questions, LENGTH, Draw(0, 0, torch.arange(3)))
    stream, run = formed.streams["body"], passed(formed)
    losses = []
    for question in range(3):
        sequences = by_hand(questions, question, dict(vocabulary.specials), MARKS[name])
        tokens = [token for sequence in sequences for token in sequence]
        size = len(tokens)
        assert stream.tokens[question, :size].tolist() == tokens
        documents = [number for number, sequence in enumerate(sequences) for _ in sequence]
        assert stream.documents[question].tolist() == documents + [PADDING] * (LENGTH - size)
        positions = [place for sequence in sequences for place in range(len(sequence))]
        assert stream.positions[question, :size].tolist() == positions
        assert objective.example_lengths(questions, LENGTH)[question] == size
        starts = np.cumsum([0, *map(len, sequences)])
        scored = starts[:-1] if name == "choose" else starts[1:] - 1
        assert formed.targets["scored"][question].tolist() == scored.tolist()
        scores = torch.cat([objective.head(run.hidden()[question, place]) for place in scored])
        losses.append(functional.cross_entropy(scores, torch.tensor(RIGHT[question])))
    expected = torch.stack(losses).sum().detach()
    assert float(objective(run)["loss"].total.detach()) == pytest.approx(float(expected))
    truncated = sum(max(0, sum(a) + b + 3 - LIMIT) for a, row in zip(CONTEXTS, CHOICES, strict=True) for b in row)
    assert sum(objective.skipped_documents(questions, LENGTH).values()) == truncated > 0


def test_the_accuracy_counts_the_choice_with_the_highest_score(
    build: Build, vocabulary: Vocabulary, questions: Tokens, passed: Passed
) -> None:
    objective: Any = build("choose", vocabulary, LENGTH, choices=3, pooler=False)
    run = passed(objective.form(questions, LENGTH, Draw(0, 0, torch.arange(3))))
    metrics = objective.metrics()
    objective.update_metrics(run, metrics)
    best = objective.class_logits(run).argmax(-1).tolist()
    expected = sum(guess == right for guess, right in zip(best, RIGHT, strict=True)) / 3
    assert {name: float(metric.compute()) for name, metric in metrics.items()} == {"accuracy": pytest.approx(expected)}
    assert objective.unigram_loss(questions, run.targets) == pytest.approx(np.log(3))  # each is right once


def test_other_numbers_of_choices_and_short_sequences_are_refused(
    build: Build, vocabulary: Vocabulary, questions: Tokens
) -> None:
    with raises_problem(DataError, "labels", "4 choices", "document 0", "3", "objective.choices=3"):
        build("choose", vocabulary, LENGTH).example_count(questions, LENGTH)
    assert questions.labels is not None
    questions.labels = questions.labels._replace(values=np.array([0.0, 1.0, 3.0]))
    with raises_problem(DataError, "labels", "3"):
        build("choose", vocabulary, LENGTH, choices=3).example_count(questions, LENGTH)
    with raises_problem(SpecError, "too-short", "dims.length", "4 choices", "20"):
        build("choose", vocabulary, 19)
    build("choose", vocabulary, 20)
