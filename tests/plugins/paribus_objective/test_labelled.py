"""Examples of labelled texts and pairs, compared with loops; and invalid labels."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus import IGNORED, DataError, Draw, ForwardPass, Labels, Objective, SpecError, Tokens, Vocabulary

Build = Callable[..., Objective]
Corpus = Callable[[list[list[int]]], Tokens]
Passed = Callable[[Any], ForwardPass]

TEXTS, OTHERS = [[3, 4], [20, 10], [1]], [[2], [9, 9], [40]]
CLS, SEP, BOS = 1, 2, 4


def with_labels(tokens: Tokens, values: list[float], targets: Tokens | None = None) -> Tokens:
    tokens.labels = Labels(np.array(values), np.arange(len(values) + 1))
    tokens.targets = targets
    return tokens


@pytest.fixture
def singles(corpus: Corpus) -> Tokens:
    return with_labels(corpus(TEXTS), [1.0, 0.0, 1.0])


@pytest.fixture
def pairs(corpus: Corpus) -> Tokens:
    return with_labels(corpus(TEXTS), [1.0, 0.0, 1.0], corpus(OTHERS))


def rows(objective: Objective, tokens: Tokens, length: int) -> list[list[int]]:
    """The tokens of each document's example, without padding."""
    count = objective.example_count(tokens, length)
    stream = objective.form(tokens, length, Draw(0, 0, torch.arange(count))).streams["body"]
    assert stream.documents is not None
    assert stream.tokens.shape == (count, length)
    return [row[documents >= 0].tolist() for row, documents in zip(stream.tokens, stream.documents, strict=True)]


def document(tokens: Tokens, number: int) -> list[int]:
    bounds = [int(tokens.sentences[tokens.documents[number + offset]]) for offset in (0, 1)]
    ids: list[int] = tokens.ids[bounds[0] : bounds[1]].tolist()
    return ids


@pytest.mark.parametrize(("name", "marks"), [("classify", (CLS, SEP, SEP)), ("classify-causal", (BOS, SEP, CLS))])
def test_texts_and_pairs_are_framed_by_cls_and_sep(
    name: str, marks: tuple[int, int, int], build: Build, singles: Tokens, pairs: Tokens, vocabulary: Vocabulary
) -> None:
    start, separator, end = marks
    objective = build(name, vocabulary, 64)
    texts = [document(singles, number) for number in range(3)]
    assert rows(objective, singles, 40) == [[start, *text, end] for text in texts]
    assert pairs.targets is not None
    second_texts = [document(pairs.targets, number) for number in range(3)]
    assert rows(objective, pairs, 64) == [
        [start, *a, separator, *b, end] for a, b in zip(texts, second_texts, strict=True)
    ]


def test_long_texts_are_truncated_the_longer_of_a_pair_first(
    build: Build, singles: Tokens, pairs: Tokens, vocabulary: Vocabulary
) -> None:
    objective = build("classify", vocabulary, 64)
    assert rows(objective, singles, 12)[1] == [CLS, *range(107, 117), SEP]
    assert pairs.targets is not None
    cut = rows(objective, pairs, 33)  # 30 tokens: of 30 and 18 the longer loses 12, then both lose 3
    assert cut[1] == [CLS, *range(107, 122), SEP, *document(pairs.targets, 1)[:15], SEP]
    assert cut[2] == [CLS, 137, SEP, *document(pairs.targets, 2)[:29], SEP]


def test_the_declared_length_equals_the_used_one(
    build: Build, singles: Tokens, pairs: Tokens, vocabulary: Vocabulary
) -> None:
    objective: Any = build("classify", vocabulary, 64)
    for tokens in (singles, pairs):
        for length in (20, 64):
            lengths = [len(row) for row in rows(objective, tokens, length)]
            assert objective.example_lengths(tokens, length).tolist() == lengths
            marks, sides = 3 if tokens.targets else 2, [tokens, *([tokens.targets] if tokens.targets else [])]
            truncated = sum(len(side.ids) for side in sides) + 3 * marks - sum(lengths)
            assert objective.skipped_documents(tokens, length) == {
                "tokens truncated from texts longer than the sequence": truncated
            }


@pytest.mark.parametrize("pool", ["first", "mean", "last"])
def test_padding_changes_neither_loss_nor_prediction(
    pool: str, build: Build, passed: Passed, pairs: Tokens, vocabulary: Vocabulary
) -> None:
    pairs.ids = pairs.ids % 90
    assert pairs.targets is not None
    pairs.targets.ids = pairs.targets.ids % 90
    objective = build("classify", vocabulary, 128, pool=pool)
    losses = [
        objective(passed(objective.form(pairs, length, Draw(0, 0, torch.arange(3)))))["loss"].total
        for length in (51, 52, 90)
    ]
    torch.testing.assert_close(losses[1:], losses[:1] * 2, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pool", ["first", "mean", "last"])
def test_the_classified_position_follows_the_option(
    pool: str, build: Build, passed: Passed, singles: Tokens, vocabulary: Vocabulary
) -> None:
    singles.ids = singles.ids % 90
    objective: Any = build("classify", vocabulary, 64, pool=pool, classes=5)
    run = passed(objective.form(singles, 40, Draw(0, 0, torch.arange(3))))
    sizes, hidden = [9, 32, 3], run.hidden("body")
    pooled = {
        "first": [hidden[row, 0] for row in range(3)],
        "mean": [hidden[row, :size].mean(0) for row, size in enumerate(sizes)],
        "last": [hidden[row, size - 1] for row, size in enumerate(sizes)],
    }[pool]
    scores = objective.head.scores(torch.tanh(objective.head.dense(torch.stack(pooled))))
    expected = -scores.log_softmax(-1)[[0, 1, 2], [1, 0, 1]].sum()
    torch.testing.assert_close(objective(run)["loss"].total, expected, rtol=0, atol=1e-12)


def test_labels_are_smoothed_only_in_training(
    build: Build, passed: Passed, singles: Tokens, vocabulary: Vocabulary
) -> None:
    singles.ids = singles.ids % 90
    plain, smooth = (build("classify", vocabulary, 64, classes=4, smoothing=share) for share in (0.0, 0.2))
    run = passed(plain.form(singles, 40, Draw(0, 0, torch.arange(3))))
    logs = plain.logits(run.hidden("body")[:, 0], run.unembed).log_softmax(-1)
    expected = sum(-0.8 * logs[row, label] - 0.2 * logs[row].mean() for row, label in enumerate([1, 0, 1]))
    torch.testing.assert_close(smooth.train()(run)["loss"].total, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(smooth.eval()(run)["loss"].total, plain.eval()(run)["loss"].total, rtol=0, atol=0)


def test_the_language_model_loss_is_of_every_token_after_the_first(
    build: Build, passed: Passed, singles: Tokens, vocabulary: Vocabulary
) -> None:
    singles.ids = singles.ids % 90
    objective = build("classify-causal", vocabulary, 64, auxiliary=0.25)
    formed = objective.form(singles, 34, Draw(0, 0, torch.arange(3)))
    tokens, next_tokens = formed.streams["body"].tokens, formed.targets["next_tokens"]
    for row, size in enumerate([9, 32, 3]):
        assert next_tokens[row].tolist() == [*tokens[row, 1:size].tolist(), *[IGNORED] * (34 - size + 1)]
    run = passed(formed)
    terms = objective(run)
    logs = run.unembed(run.hidden("body")).log_softmax(-1)
    expected = sum(
        -logs[row, position, tokens[row, position + 1]]
        for row, size in enumerate([9, 32, 3])
        for position in range(size - 1)
    )
    torch.testing.assert_close(terms["auxiliary"].total, expected, rtol=0, atol=1e-10)
    assert terms["auxiliary"].weight == 0.25
    assert int(terms["auxiliary"].count) == 9 + 32 + 3 - 3


def test_frequencies_are_those_of_the_labels(build: Build, singles: Tokens, vocabulary: Vocabulary) -> None:
    for name in ("classify", "classify-causal"):
        loss = build(name, vocabulary).unigram_loss(singles, {"labels": torch.tensor([1, 1])})
        assert loss == pytest.approx(-np.log(3 / 5))


def test_the_baseline_of_a_regression_is_the_error_of_the_mean(
    build: Build, singles: Tokens, vocabulary: Vocabulary
) -> None:
    objective, mean = build("regress", vocabulary), 2 / 3
    targets = {"has_score": torch.tensor([0, 0, IGNORED]), "scores": torch.tensor([1.0, 4.0, 100.0])}
    assert objective.unigram_loss(singles, targets) == pytest.approx(((1 - mean) ** 2 + (4 - mean) ** 2) / 2)
    assert objective.unigram_loss(singles, {**targets, "has_score": torch.full((3,), IGNORED)}) is None


@pytest.mark.parametrize("wrong", [2.0, -1.0, 0.5])
def test_a_label_outside_the_classes_is_refused(
    wrong: float, build: Build, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    tokens = with_labels(corpus([[2], [3]]), [1.0, wrong])
    with raises_problem(DataError, "labels", "corpus", "2", f"{wrong:g}"):
        build("classify", vocabulary).example_count(tokens, 32)


@pytest.mark.parametrize("name", ["classify", "regress"])
def test_a_document_without_exactly_one_label_is_refused(
    name: str, build: Build, corpus: Corpus, vocabulary: Vocabulary
) -> None:
    tokens = corpus([[2], [3]])
    tokens.labels = Labels(np.array([1.0, 0.0, 1.0]), np.array([0, 1, 3]))
    with raises_problem(DataError, "labels", "corpus", name, "1", "2"):
        build(name, vocabulary).example_count(tokens, 32)


def test_a_length_too_short_for_a_pair_is_rejected(build: Build, vocabulary: Vocabulary) -> None:
    with raises_problem(SpecError, "too-short", "≥ 5", "4"):
        build("classify", vocabulary, 4)
    with raises_problem(SpecError, "too-short", "bos, sep, cls"):
        build("classify-causal", vocabulary, 4)


def test_the_error_is_squared_and_summed(build: Build, passed: Passed, pairs: Tokens, vocabulary: Vocabulary) -> None:
    pairs.labels = Labels(np.array([0.25, -100.0, 3.5]), np.arange(4))
    pairs.ids = pairs.ids % 90
    assert pairs.targets is not None
    pairs.targets.ids = pairs.targets.ids % 90
    objective = build("regress", vocabulary, 64, pool="mean")
    assert objective.example_count(pairs, 64) == 3
    run = passed(objective.form(pairs, 64, Draw(0, 0, torch.arange(3))))
    rows = [run.hidden("body")[row, :size].mean(0) for row, size in enumerate([12, 51, 44])]
    predictions = objective.logits(torch.stack(rows), run.unembed)[:, 0]
    expected = sum((predictions[row] - score) ** 2 for row, score in enumerate([0.25, -100.0, 3.5]))
    term = objective(run)["loss"]
    torch.testing.assert_close(term.total, expected, rtol=0, atol=1e-9)
    assert int(term.count) == 3  # a score may be any number, even that of an ignored label
    metrics = objective.metrics()
    objective.update_metrics(run, metrics)
    wanted_r = np.corrcoef(predictions.detach().numpy(), [0.25, -100.0, 3.5])[0, 1]
    assert float(metrics["pearson"].compute()) == pytest.approx(wanted_r)
