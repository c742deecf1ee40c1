"""Completion: only the answer of a prompt is predicted."""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor
from torch.nn import functional

from paribus import (
    IGNORED,
    PADDING,
    DataError,
    Draw,
    ForwardPass,
    Objective,
    SpecError,
    Tokens,
    TrainingExamples,
    Vocabulary,
)

Build = Callable[..., Objective]
Passed = Callable[[TrainingExamples], ForwardPass]
PAD, SEP, EOS = 0, 2, 5
Pair = tuple[Sequence[int], Sequence[Sequence[int]]]  # prompt and sentences of the answer
PAIRS: list[Pair] = [([10, 11, 12], [[20, 21]]), ([13], [[22]]), ([14, 15], [[23], [24, 25], [26]])]


def side(sentences: Sequence[Sequence[Sequence[int]]]) -> Any:
    flat = [sentence for document in sentences for sentence in document]
    ids = np.array([token for sentence in flat for token in sentence], dtype=np.uint16)
    bounds = np.cumsum([0, *map(len, flat)])
    documents = np.cumsum([0, *map(len, sentences)])
    return SimpleNamespace(ids=ids, sentences=bounds, documents=documents, languages=None, targets=None, labels=None)


def corpus(pairs: Sequence[Pair], marks: Sequence[float] | None = None) -> Tokens:
    data: Any = side([[prompt] for prompt, _ in pairs])
    data.targets = side([answer for _, answer in pairs])
    if marks is not None:
        data.labels = SimpleNamespace(values=np.array(marks, dtype=np.float64))
    tokens: Tokens = data
    return tokens


def all_of(objective: Objective, tokens: Tokens, length: int) -> TrainingExamples:
    return objective.form(tokens, length, Draw(0, 0, torch.arange(objective.example_count(tokens, length))))


def test_labels_are_the_answer_and_its_end(build: Build, vocabulary: Vocabulary) -> None:
    formed = all_of(build("completion", vocabulary), corpus(PAIRS), 8)
    body = formed.streams["body"]
    assert body.tokens.tolist() == [
        [10, 11, 12, SEP, 20, 21, EOS, PAD],
        [13, SEP, 22, EOS, PAD, PAD, PAD, PAD],
        [14, 15, SEP, 23, 24, 25, 26, EOS],
    ]
    i = IGNORED
    assert formed.targets["labels"].tolist() == [
        [i, i, i, 20, 21, EOS, i, i],
        [i, 22, EOS, i, i, i, i, i],
        [i, i, 23, 24, 25, 26, EOS, i],
    ]
    assert body.documents is not None
    assert (body.documents != PADDING).sum(1).tolist() == [6, 3, 7]  # the end token of an answer is not fed


def test_without_a_separator_and_a_stop_token_a_prompt_is_its_text(build: Build, vocabulary: Vocabulary) -> None:
    formed = all_of(build("completion", vocabulary, separator=False, stop=False), corpus(PAIRS[:2]), 5)
    assert formed.streams["body"].tokens.tolist() == [[10, 11, 12, 20, 21], [13, 22, EOS, PAD, PAD]]
    assert formed.targets["labels"].tolist() == [[IGNORED, IGNORED, 20, 21, IGNORED], [22] + 4 * [IGNORED]]


def test_given_tokens_of_an_answer_are_not_labels(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("completion", vocabulary, marks=True, separator=False, stop=False)
    labels = all_of(objective, corpus(PAIRS, [1, 0, 1, 0, 1]), 6).targets["labels"]
    assert [[label for label in row if label != IGNORED] for row in labels.tolist()] == [[20, 21], [], [23, 26]]
    with raises_problem(DataError, "wrong-number-of-marks", "5", "2"):
        all_of(objective, corpus(PAIRS, [1, 0]), 6)


def test_the_loss_and_the_metrics_are_those_of_the_labels(build: Build, vocabulary: Vocabulary, passed: Passed) -> None:
    objective = build("completion", vocabulary)
    formed = all_of(objective, corpus(PAIRS), 8)
    run = passed(formed)
    logits, labels = objective.logits(run.hidden(), run.unembed), formed.targets["labels"]
    labelled = [(b, t) for b in range(3) for t in range(8) if labels[b, t] != IGNORED]
    expected = sum(functional.cross_entropy(logits[b, t], labels[b, t]) for b, t in labelled)
    term = objective(run)["loss"]
    torch.testing.assert_close(term.total, torch.as_tensor(expected))
    assert int(term.count) == len(labelled)
    metrics = objective.metrics()
    objective.update_metrics(run, metrics)
    is_correct = {(b, t): bool(logits[b, t].argmax() == labels[b, t]) for b, t in labelled}
    assert float(metrics["accuracy"].compute()) == pytest.approx(sum(is_correct.values()) / len(labelled))
    is_exact = [all(correct for (b, _), correct in is_correct.items() if b == row) for row in range(3)]
    assert float(metrics["exact"].compute()) == pytest.approx(sum(is_exact) / 3)


def test_one_wrong_token_makes_an_answer_wrong(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("completion", vocabulary)
    formed = all_of(objective, corpus(PAIRS), 8)
    labels = formed.targets["labels"]
    predictions = labels.clamp(min=0)
    predictions[2, 3] = 99

    def exact_match_of(predictions: Tensor) -> float:
        from paribus_objective import scoring

        metric = scoring.exact_match()
        scoring.update_exact_match(metric, predictions, labels)
        return float(metric.compute())

    assert exact_match_of(labels.clamp(min=0)) == 1.0
    assert exact_match_of(predictions) == pytest.approx(2 / 3)


def test_a_prompt_equals_that_of_a_training_example(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("completion", vocabulary)
    prompt = objective.prompt([10, 11, 12])
    assert prompt is not None
    assert (list(prompt.body), prompt.stop) == ([10, 11, 12, SEP], EOS)
    assert all_of(objective, corpus(PAIRS), 8).streams["body"].tokens[0, :4].tolist() == list(prompt.body)


def test_pairs_that_do_not_fit_are_refused_dropped_or_truncated(build: Build, vocabulary: Vocabulary) -> None:
    pairs: list[Pair] = [([10, 11, 12, 13, 14], [[20, 21]]), ([15], [[22]])]
    with raises_problem(DataError, "too-long", "1", "2", "6", "dims.length ≥ 8"):
        build("completion", vocabulary, length=6, overlong="error").example_count(corpus(pairs), 6)
    dropping: Any = build("completion", vocabulary, length=6, overlong="drop")
    assert all_of(dropping, corpus(pairs), 6).streams["body"].tokens[:, :3].tolist() == [[15, SEP, 22]]
    assert dropping.skipped_documents(corpus(pairs), 6) == {"pairs dropped because they are longer than 6": 1}
    cutting = build("completion", vocabulary, length=6, overlong="truncate")
    assert all_of(cutting, corpus(pairs), 6).streams["body"].tokens[0].tolist() == [12, 13, 14, SEP, 20, 21]
    with raises_problem(DataError, "too-long", "1 of 1"):
        build("completion", vocabulary, length=3, overlong="drop").example_count(corpus(pairs[:1]), 3)
    with raises_problem(SpecError, "too-short", "dims.length", "≥ 3", "2"):
        build("completion", vocabulary, length=2)


def test_every_example_fits_into_the_declared_length(build: Build, vocabulary: Vocabulary) -> None:
    objective: Any = build("completion", vocabulary)
    tokens = corpus(PAIRS)
    for index, rows in enumerate(objective.example_lengths(tokens, 32).tolist()):
        one = objective.form(tokens, rows, Draw(0, 0, torch.tensor([index])))
        many = objective.form(tokens, 32, Draw(0, 0, torch.tensor([index])))
        assert torch.equal(one.targets["labels"], many.targets["labels"][:, :rows])
        assert (many.targets["labels"][:, rows:] == IGNORED).all()
        documents = one.streams["body"].documents
        assert documents is not None
        assert (documents != PADDING).all()


def test_frequencies_are_those_of_the_labels(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("completion", vocabulary, marks=True)
    train, val = corpus(PAIRS, [1, 1, 1, 0, 1]), corpus(PAIRS[:1], [1])
    counts = dict.fromkeys(range(100), 1)
    for token in (20, 21, 22, 23, 26, EOS, EOS, EOS):
        counts[token] += 1
    nats = [-math.log(counts[token] / sum(counts.values())) for token in (20, 21, EOS)]
    targets = objective.form(val, 32, Draw(0, 0, torch.arange(1))).targets
    assert objective.unigram_loss(train, targets) == pytest.approx(sum(nats) / 3)
    targets["labels"].fill_(IGNORED)
    assert objective.unigram_loss(train, targets) is None


def test_each_side_has_its_language(build: Build, vocabulary: Vocabulary) -> None:
    tokens: Any = corpus(PAIRS)
    tokens.languages, tokens.targets.languages = np.array([0, 0, 1]), np.array([1, 1, 0])
    languages = all_of(build("completion", vocabulary), tokens, 8).streams["body"].languages
    assert languages is not None
    assert languages[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert languages[2].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
