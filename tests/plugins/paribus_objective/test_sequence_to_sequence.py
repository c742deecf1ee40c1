"""Sequence to sequence: sources, targets, truncation, languages and metrics."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
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
    GenerationTarget,
    SpecError,
    Tokens,
    TrainingExamples,
    Vocabulary,
)

Build = Callable[..., Any]  # Any: some tests call methods of the subclass
Texts = Sequence[Sequence[int]]

PAD, EOS, FIRST = 0, 5, 80  # and the first sentinel


@pytest.fixture
def pairs(corpus: Callable[[Texts], Any]) -> Callable[..., Any]:
    """Build a corpus of pairs from lengths of texts; target ids count up from 20."""

    def of(source: Texts, target: Texts, languages: tuple[list[int], list[int]] | None = None) -> Any:
        source_corpus, target_corpus = corpus(source), corpus(target)
        source_corpus, target_corpus = (
            replace(source_corpus, ids=source_corpus.ids % 9 + 10),
            replace(target_corpus, ids=target_corpus.ids % 50 + 20),
        )
        if languages is not None:
            source_corpus, target_corpus = (
                replace(side, languages=np.array(side_languages))
                for side, side_languages in zip((source_corpus, target_corpus), languages, strict=True)
            )
        return replace(source_corpus, targets=target_corpus)

    return of


def draw(*index: int) -> Draw:
    return Draw(0, 0, torch.tensor(index))


def text(tokens: Any, document: int) -> list[int]:
    start, end = (tokens.sentences[tokens.documents[document + offset]] for offset in (0, 1))
    return [int(token) for token in tokens.ids[start:end]]


def test_both_sides_end_with_eos_and_the_decoder_is_fed_shifted_labels(
    build: Build, pairs: Any, vocabulary: Vocabulary
) -> None:
    objective = build("seq2seq", vocabulary, 12)
    tokens = pairs([[3, 2], [1], [4]], [[2], [3, 3], [1]])
    formed = objective.form(tokens, 12, draw(2, 0, 1))
    encoder, body, labels = formed.streams["encoder"], formed.streams["body"], formed.targets["labels"]
    for row, document in enumerate((2, 0, 1)):
        source, target = text(tokens, document), text(tokens.targets, document)
        assert encoder.tokens[row].tolist() == [*source, EOS] + [PAD] * (11 - len(source))
        assert labels[row].tolist() == [*target, EOS] + [IGNORED] * (11 - len(target))
        assert body.tokens[row].tolist() == [PAD, *target] + [PAD] * (11 - len(target))
        assert encoder.documents is not None and body.documents is not None  # noqa: PT018  # for the reader of types
        assert (encoder.documents[row] == PADDING).sum() == 11 - len(source)
        assert torch.equal(body.documents[row] == PADDING, labels[row] == IGNORED)
        assert set(body.documents[row].tolist()) == {0, PADDING}


@pytest.mark.parametrize("length", [5, 8, 20])
def test_examples_have_the_chosen_widths(length: int, build: Build, pairs: Any, vocabulary: Vocabulary) -> None:
    objective = build("seq2seq", vocabulary, 20)
    formed = objective.form(pairs([[3]], [[4]]), length, draw(0, 0))
    assert {tuple(it.shape) for it in (*(s.tokens for s in formed.streams.values()), formed.targets["labels"])} == {
        (2, length)
    }


def test_the_start_token_equals_that_of_span_corruption(build: Build, pairs: Any) -> None:
    for specials, start in (({"pad": 7, "bos": 1, "eos": 2}, 7), ({"bos": 1, "eos": 2}, 1), ({"eos": 2}, 2)):
        formed = build("seq2seq", Vocabulary(100, specials), 12).form(pairs([[3]], [[3]]), 12, draw(0))
        assert formed.streams["body"].tokens[0, 0] == start


def test_tokens_that_are_not_text_are_marked_as_special(build: Build, pairs: Any, vocabulary: Vocabulary) -> None:
    formed = build("seq2seq", vocabulary, 6, languages=2).form(pairs([[3]], [[2]], ([0], [1])), 6, draw(0))
    special = {
        name: stream.special.long().tolist() for name, stream in formed.streams.items() if stream.special is not None
    }
    assert special == {"encoder": [[1, 0, 0, 0, 1, 1]], "body": [[1, 0, 0, 1, 1, 1]]}


@pytest.mark.parametrize("languages", [None, 2])
def test_a_source_is_reversed_by_option(
    languages: int | None, build: Build, pairs: Any, vocabulary: Vocabulary
) -> None:
    tokens = pairs([[3], [9]], [[2], [4]], ([0, 1], [1, 0]))
    plain, reversing = (
        build("seq2seq", vocabulary, 7, languages=languages, reversed=is_reversed) for is_reversed in (False, True)
    )
    one, two = (objective.form(tokens, 7, draw(0, 1)) for objective in (plain, reversing))
    start = 1 if languages else 0
    for row, rows in ((0, 3), (1, 6 - start)):
        forward, backward = (formed.streams["encoder"].tokens[row].tolist() for formed in (one, two))
        assert backward[start : start + rows] == forward[start : start + rows][::-1]
        assert (backward[:start], backward[start + rows :]) == (forward[:start], forward[start + rows :]), (
            "marks stay where they are"
        )
    assert torch.equal(one.streams["body"].tokens, two.streams["body"].tokens)
    prompt = reversing.prompt(text(tokens, 0), GenerationTarget(1))
    assert prompt is not None
    assert prompt.source == tuple(two.streams["encoder"].tokens[0, : start + 4].tolist())


# --- long texts ---


def test_a_long_pair_is_truncated_on_its_long_side(build: Build, pairs: Any, vocabulary: Vocabulary) -> None:
    objective = build("seq2seq", vocabulary, 5)
    tokens = pairs([[9], [2], [4]], [[3], [7], [4]])
    assert objective.example_count(tokens, 5) == 3
    formed = objective.form(tokens, 5, draw(0, 1, 2))
    assert formed.streams["encoder"].tokens[0].tolist() == [*text(tokens, 0)[:4], EOS]
    assert formed.targets["labels"][1].tolist() == [*text(tokens.targets, 1)[:4], EOS]
    assert formed.targets["labels"][2].tolist() == [*text(tokens.targets, 2), EOS]
    assert objective.skipped_documents(tokens, 5) == {"pairs truncated because a side is longer than 5": 2}


def test_a_long_pair_is_dropped_by_option(build: Build, pairs: Any, vocabulary: Vocabulary) -> None:
    objective = build("seq2seq", vocabulary, 5, overlong="drop")
    tokens = pairs([[9], [2], [4], [1]], [[3], [7], [4], [2]])
    assert objective.example_count(tokens, 5) == 2
    formed = objective.form(tokens, 5, draw(0, 1))
    assert formed.targets["labels"][0].tolist() == [*text(tokens.targets, 2), EOS]
    assert formed.streams["encoder"].tokens[1].tolist() == [*text(tokens, 3), EOS, PAD, PAD, PAD]
    assert objective.skipped_documents(tokens, 5) == {"pairs dropped because a side is longer than 5": 2}
    assert objective.example_lengths(tokens, 5).tolist() == [5, 3]


def test_without_pairs_the_error_gives_their_lengths(build: Build, pairs: Any, vocabulary: Vocabulary) -> None:
    objective = build("seq2seq", vocabulary, 5, overlong="drop")
    with raises_problem(DataError, "too-long", "dims.length", "2", "5", "8"):
        objective.example_count(pairs([[9], [2]], [[3], [7]]), 5)


def test_an_example_is_as_long_as_its_longer_side(build: Build, pairs: Any, vocabulary: Vocabulary) -> None:
    tokens = pairs([[3, 2], [1], [30]], [[2], [3, 3], [1]], ([0, 1, 0], [1, 0, 1]))
    assert build("seq2seq", vocabulary, 12).example_lengths(tokens, 12).tolist() == [6, 7, 12]
    assert build("seq2seq", vocabulary, 12, languages=2).example_lengths(tokens, 12).tolist() == [7, 7, 12]
    objective = build("seq2seq", vocabulary, 12)
    for document, length in enumerate(objective.example_lengths(tokens, 12)):
        formed = objective.form(tokens, int(length), draw(document))
        whole = objective.form(tokens, 12, draw(document))
        for name in ("encoder", "body"):
            assert torch.equal(formed.streams[name].tokens, whole.streams[name].tokens[:, :length])


def test_a_length_too_short_for_a_token_is_rejected(build: Build, vocabulary: Vocabulary) -> None:
    with raises_problem(SpecError, "too-short", "dims.length", "≥ 3", "2"):
        build("seq2seq", vocabulary, 2, languages=2)
    build("seq2seq", vocabulary, 2)


# --- languages ---


def test_sources_and_decoders_begin_with_language_tokens(build: Build, pairs: Any, vocabulary: Vocabulary) -> None:
    objective = build("seq2seq", vocabulary, 8, languages=3)
    tokens = pairs([[3], [7]], [[2], [2]], ([0, 2], [2, 1]))
    formed = objective.form(tokens, 8, draw(0, 1))
    encoder, body = formed.streams["encoder"], formed.streams["body"]
    assert encoder.tokens[0].tolist() == [FIRST, *text(tokens, 0), EOS, PAD, PAD, PAD]
    assert encoder.tokens[1].tolist() == [FIRST + 2, *text(tokens, 1)[:6], EOS], "its mark and its end are kept"
    assert body.tokens[:, 0].tolist() == [FIRST + 2, FIRST + 1]
    assert formed.targets["labels"][0, :3].tolist() == [*text(tokens.targets, 0), EOS]
    assert objective.skipped_documents(tokens, 8) == {"pairs truncated because a side is longer than 8": 1}


def test_tokens_have_the_language_of_their_side(build: Build, pairs: Any, vocabulary: Vocabulary) -> None:
    formed = build("seq2seq", vocabulary, 8).form(pairs([[3], [7]], [[2], [2]], ([0, 2], [2, 1])), 8, draw(0, 1))
    languages = [formed.streams[name].languages for name in ("encoder", "body")]
    assert [set(row.tolist()) for it in languages if it is not None for row in it] == [{0}, {2}, {2}, {1}]
    silent = build("seq2seq", vocabulary, 8).form(pairs([[3]], [[2]]), 8, draw(0))
    assert {stream.languages for stream in silent.streams.values()} == {None}


def test_too_few_sentinels_for_the_languages_are_refused(build: Build, vocabulary: Vocabulary) -> None:
    with raises_problem(SpecError, "too-few-sentinels", "tokenizer", "≥ 21", "20"):
        build("seq2seq", vocabulary, languages=21)


def test_too_few_or_too_many_languages_are_refused(build: Build, pairs: Any, vocabulary: Vocabulary) -> None:
    objective = build("seq2seq", vocabulary, languages=2)
    with raises_problem(DataError, "missing-languages", "objective.languages"):
        objective.example_count(pairs([[3]], [[2]]), 32)
    with raises_problem(DataError, "too-few", "objective.languages", "≥ 3"):
        objective.example_count(pairs([[3]], [[2]], ([0], [2])), 32)


# --- prompts ---


def test_a_prompt_equals_the_beginning_of_an_example(build: Build, pairs: Any, vocabulary: Vocabulary) -> None:
    tokens = pairs([[3], [7]], [[2], [2]], ([0, 1], [1, 0]))
    for options in ({}, {"languages": 2}):
        objective = build("seq2seq", vocabulary, 12, **options)
        for document, language in ((0, 1), (1, 0)):
            formed = objective.form(tokens, 12, draw(document))
            prompt = objective.prompt(text(tokens, document), GenerationTarget(language if options else None))
            assert prompt is not None
            assert prompt.source is not None
            assert formed.streams["encoder"].tokens[0, : len(prompt.source)].tolist() == list(prompt.source)
            assert (formed.streams["encoder"].tokens[0, len(prompt.source) :] == PAD).all()
            assert formed.streams["body"].tokens[0, :1].tolist() == list(prompt.body)
            assert (prompt.stop, prompt.bidirectional) == (EOS, False)


def test_a_prompt_among_three_languages_needs_both(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("seq2seq", vocabulary, languages=3)
    prompt: Any = objective.prompt
    assert prompt([9], GenerationTarget(2, 1)).source == (FIRST + 1, 9, EOS)
    assert prompt([FIRST, 9], GenerationTarget(2)).source == (FIRST, 9, EOS)
    with raises_problem(SpecError, "missing-language", "language", "0 to 2"):
        prompt([9], GenerationTarget(2))
    with raises_problem(SpecError, "missing-language", "language"):
        prompt([9])
    with raises_problem(SpecError, "missing-language", "language", "3"):
        prompt([9], GenerationTarget(3))


# --- the loss ---


def smoothed(logits: Tensor, labels: Tensor, share: float) -> float:
    """Cross-entropy with (1 - share) on the label, and share spread evenly over the vocabulary, summed by a loop."""
    total = 0.0
    for row, label in zip(logits.detach().flatten(0, 1), labels.flatten().tolist(), strict=True):
        if label != IGNORED:
            nats = -row.log_softmax(-1)
            total += float((1 - share) * nats[label] + share * nats.mean())
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
def test_labels_are_smoothed_only_in_training(
    smoothing: float,
    build: Build,
    pairs: Any,
    vocabulary: Vocabulary,
    passed: Callable[[TrainingExamples], ForwardPass],
) -> None:
    objective = build("seq2seq", vocabulary, 12, smoothing=smoothing)
    run = passed(objective.form(pairs([[3], [7]], [[2], [5]]), 12, draw(0, 1)))
    logits, labels = objective.logits(run.hidden(), run.unembed), run.targets["labels"]
    for training, share in ((True, smoothing), (False, 0.0)):
        term = objective.train(training)(run)["loss"]
        assert term.total.item() == pytest.approx(smoothed(logits, labels, share), rel=1e-12)
        assert term.count.item() == 3 + 6


def test_padding_does_not_change_the_loss(
    build: Build, pairs: Any, vocabulary: Vocabulary, passed: Callable[[TrainingExamples], ForwardPass]
) -> None:
    objective = build("seq2seq", vocabulary, 40)
    tokens = pairs([[3], [7]], [[2], [5]])
    terms = [objective(passed(objective.form(tokens, length, draw(0, 1))))["loss"] for length in (8, 40)]
    torch.testing.assert_close(terms[0].total, terms[1].total, rtol=1e-12, atol=0)
    assert terms[0].count == terms[1].count


def test_exact_counts_pairs_without_wrong_predictions(build: Build, pairs: Any, vocabulary: Vocabulary) -> None:
    objective = build("seq2seq", vocabulary, 8)
    formed = objective.form(pairs([[3], [7], [2]], [[2], [5], [3]]), 8, draw(0, 1, 2))
    labels = formed.targets["labels"]
    scores = functional.one_hot(labels.clamp(min=0), 100).double()
    scores[1, 2] = scores[1, 2].roll(1)  # one wrong token
    scores[2, 6] = scores[2, 6].roll(1)  # and a wrong token without a label

    class FixedLogits:
        targets = formed.targets

        def hidden(self, part: str) -> Tensor:
            return scores

        def unembed(self, hidden: Tensor, bias: Tensor | None) -> Tensor:
            return hidden

        def cached(self, name: str, make: Callable[[], Any]) -> Any:
            return make()

    metrics = objective.metrics()
    objective.update_metrics(FixedLogits(), metrics)
    assert metrics["exact"].compute() == pytest.approx(2 / 3)
    assert metrics["accuracy"].compute() == pytest.approx(12 / 13)


def test_frequencies_are_those_of_the_targets_labels(build: Build, pairs: Any, vocabulary: Vocabulary) -> None:
    train, val = pairs([[3], [9], [2]], [[2], [3], [7]]), pairs([[3], [3]], [[4], [9]])
    for length, overlong in ((30, "truncate"), (6, "truncate"), (6, "drop")):
        objective = build("seq2seq", vocabulary, length, overlong=overlong)
        train_labels, val_labels = (
            [
                token
                for document in range(objective.example_count(tokens, length))
                for token in objective.form(tokens, length, draw(document)).targets["labels"][0].tolist()
                if token != IGNORED
            ]
            for tokens in (train, val)
        )
        counts = Counter(train_labels)
        nats = [-math.log((counts[token] + 1) / (len(train_labels) + 100)) for token in val_labels]
        index = torch.arange(objective.example_count(val, length))
        targets = objective.form(val, length, Draw(0, 0, index)).targets
        assert objective.unigram_loss(train, targets) == pytest.approx(sum(nats) / len(nats), rel=1e-12)


def test_short_enough_pairs_are_cached_and_not_copied(build: Build, pairs: Any, vocabulary: Vocabulary) -> None:
    import copy

    objective: Any = build("seq2seq", vocabulary, 8)
    tokens: Tokens = pairs([[3], [7]], [[2], [5]])
    assert objective.pairs.documents(tokens) is objective.pairs.documents(tokens)
    copied = copy.deepcopy(objective)
    assert not copied.pairs._cache
    assert copied.example_count(tokens, 8) == 2
