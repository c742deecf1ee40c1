"""Control codes: each piece of text follows the code of its class."""

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus import (
    IGNORED,
    DataError,
    Draw,
    GenerationTarget,
    Labels,
    Objective,
    SpecError,
    Tokens,
    TrainingExamples,
    Vocabulary,
)
from paribus_objective.control import PieceCache

Build = Callable[..., Objective]
Corpus = Callable[[Sequence[Sequence[int]]], Tokens]

EOS = 1
CODES = tuple(range(60, 66))
VOCABULARY = Vocabulary(5000, {"pad": 0, "eos": EOS}, CODES)
DOCUMENTS = [[5, 6], [30, 2], [7], [1], [44, 3], [9, 9], [12]]
CLASSES = [2, 0, 2, 4, 0, 2, 0]


@pytest.fixture
def tokens(corpus: Corpus) -> Any:
    data: Any = corpus(DOCUMENTS)
    data.labels = Labels(np.array(CLASSES, dtype=np.float64), np.arange(len(CLASSES) + 1))
    return data


def all_examples(objective: Objective, tokens: Tokens, length: int) -> TrainingExamples:
    count = objective.example_count(tokens, length)
    return objective.form(tokens, length, Draw(0, 0, torch.arange(count)))


def texts(tokens: Any) -> dict[int, list[int]]:
    """Concatenated documents of each class, each with an end token."""
    by_class: dict[int, list[int]] = {}
    for document, kind in enumerate(CLASSES):
        start, end = tokens.documents[document], tokens.documents[document + 1]
        ids = tokens.ids[tokens.sentences[start] : tokens.sentences[end]].tolist()
        by_class.setdefault(kind, []).extend([*ids, EOS])
    return by_class


@pytest.mark.parametrize("length", [2, 8, 16, 40])
def test_pieces_are_a_control_code_and_text_of_its_class(length: int, build: Build, tokens: Any) -> None:
    batch = all_examples(build("control", VOCABULARY, length), tokens, length)
    rows, labels, special = batch.streams["body"].tokens, batch.targets["labels"], batch.streams["body"].special
    assert rows.shape == labels.shape == (len(rows), length)
    assert special is not None
    assert special[:, 0].all()
    assert not special[:, 1:].any()
    remaining = {kind: list(text) for kind, text in texts(tokens).items()}
    for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
        kind = CODES.index(row[0])
        piece = remaining[kind][:length]
        del remaining[kind][:length]
        padding_count = length - len(piece)
        assert label == [*piece, *([IGNORED] * padding_count)]
        assert row[1:] == [*piece, *([EOS] * padding_count)][:-1]
    assert all(len(rest) < length for rest in remaining.values())
    assert all(len(text) < length or CODES[kind] in rows[:, 0] for kind, text in texts(tokens).items())


def test_every_class_has_a_piece_and_every_piece_a_label(build: Build, tokens: Any) -> None:
    batch = all_examples(build("control", VOCABULARY, 400), tokens, 400)
    assert sorted(batch.streams["body"].tokens[:, 0].tolist()) == [CODES[0], CODES[2], CODES[4]]
    assert (batch.targets["labels"] != IGNORED).sum(1).tolist() == [
        len(text) for _, text in sorted(texts(tokens).items())
    ]


def test_no_code_is_predicted(build: Build, tokens: Any) -> None:
    labels = all_examples(build("control", VOCABULARY, 16), tokens, 16).targets["labels"]
    assert not set(CODES) & set(labels.flatten().tolist())


def test_each_token_has_the_language_of_its_document(build: Build, tokens: Any) -> None:
    tokens.languages = np.arange(len(DOCUMENTS))
    objective = build("control", VOCABULARY, 8)
    batch = all_examples(objective, tokens, 8)
    languages = batch.streams["body"].languages
    assert languages is not None
    bounds = tokens.sentences[tokens.documents]
    for row, tongues in zip(batch.streams["body"].tokens.tolist(), languages.tolist(), strict=True):
        for token, tongue in zip(row, tongues, strict=True):
            if token >= 100:
                assert tongue == int(np.searchsorted(bounds, token - 100, side="right")) - 1
        assert tongues[0] == tongues[1]


def test_copies_of_the_objective_make_the_same_pieces(build: Build, tokens: Any) -> None:
    objective = build("control", VOCABULARY, 8)
    whole = all_examples(objective, tokens, 8)
    assert torch.equal(all_examples(copy.deepcopy(objective), tokens, 8).targets["labels"], whole.targets["labels"])
    copied_cache = pickle.loads(pickle.dumps(PieceCache(3)))  # pickled here
    with raises_problem(DataError, "too-few-sentinels", "tokenizer", "3"):
        copied_cache(tokens, 8)


def test_more_classes_than_sentinels_are_refused(build: Build, tokens: Any) -> None:
    objective = build("control", VOCABULARY._replace(sentinels=CODES[:4]), 8)
    with raises_problem(DataError, "too-few-sentinels", "tokenizer", "5", "4"):
        objective.example_count(tokens, 8)


def test_a_tokenizer_without_an_end_mark_is_refused(build: Build) -> None:
    with raises_problem(SpecError, "missing-special-token", "eos"):
        build("control", Vocabulary(5000, {"pad": 0}, CODES))


def test_a_prompt_begins_with_the_chosen_code(build: Build) -> None:
    objective = build("control", VOCABULARY)
    prompt, default_prompt = objective.prompt([20, 21], GenerationTarget(language=1, label=3)), objective.prompt([])
    assert prompt is not None
    assert default_prompt is not None
    assert (prompt.body, prompt.source, prompt.stop, prompt.bidirectional) == ((CODES[3], 20, 21), None, EOS, False)
    assert default_prompt.body == (CODES[0],)
    with raises_problem(SpecError, "unknown-class", "label", "99", len(CODES)):
        objective.prompt([20], GenerationTarget(label=99))
