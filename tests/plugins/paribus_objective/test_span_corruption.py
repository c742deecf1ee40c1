"""Span corruption: inputs and labels together equal the original text."""

from collections.abc import Callable

import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus import IGNORED, PADDING, Draw, Objective, Prompt, SpecError, Stream, TrainingExamples, Vocabulary
from paribus_objective.spans import noise_size, side_lengths

Build = Callable[..., Objective]

PAD, BOS, EOS = 0, 1, 2
SENTINELS = range(1000, 1300)
VOCABULARY = Vocabulary(1300, {"pad": PAD, "bos": BOS, "eos": EOS}, tuple(SENTINELS))


@pytest.fixture
def t5(build: Build) -> Objective:
    return build("span-corruption", VOCABULARY, 600)


def corrupted(
    objective: Objective, length: int, count: int = 3, **vectors: torch.Tensor
) -> tuple[torch.Tensor, TrainingExamples]:
    tokens = torch.arange(count * length).reshape(count, length) % 900 + 10
    return tokens, objective.corrupt({"body": Stream(tokens, **vectors)}, {}, Draw(0, length, torch.arange(count)))


def merged(inputs: list[int], labels: list[int]) -> list[int]:
    """The text: each sentinel of the inputs replaced by what follows it in the labels."""
    assert inputs.pop() == labels.pop() == EOS
    spans: dict[int, list[int]] = {}
    for token in labels:
        if token in SENTINELS:
            assert token not in spans
            spans[token] = []
        else:
            spans[list(spans)[-1]].append(token)
    assert [token for token in inputs if token in SENTINELS] == list(SENTINELS[: len(spans)]) == list(spans)
    assert all(spans.values())
    return [token for symbol in inputs for token in (spans[symbol] if symbol in SENTINELS else [symbol])]


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"rate": 0.5, "mean_span": 1.5}, {"rate": 0.8, "mean_span": 10.0}])
def test_inputs_and_labels_together_are_the_original(options: dict[str, float], build: Build) -> None:
    objective = build("span-corruption", VOCABULARY, 600, **options)
    step = 1 if not options else 7
    for length in range(2, 601, step):
        tokens, batch = corrupted(objective, length)
        inputs, labels = batch.streams["encoder"].tokens, batch.targets["labels"]
        for row, original in enumerate(tokens.tolist()):
            assert inputs[row, 0] == original[0]
            assert merged(inputs[row].tolist(), labels[row].tolist()) == original


def test_lengths_depend_only_on_the_length_of_the_text(t5: Objective) -> None:
    for length in (2, 3, 50, 568):
        _, batch = corrupted(t5, length, 40)
        lengths = batch.streams["encoder"].tokens.shape[1], batch.targets["labels"].shape[1]
        assert lengths == side_lengths(length, noise_size(length, 0.15, 3.0))


def test_the_decoder_is_fed_pad_and_shifted_labels(t5: Objective) -> None:
    _, batch = corrupted(t5, 100)
    body, labels = batch.streams["body"].tokens, batch.targets["labels"]
    assert body.shape == labels.shape
    assert (body[:, 0] == PAD).all()
    assert torch.equal(body[:, 1:], labels[:, :-1])


@pytest.mark.parametrize(("specials", "start"), [({"bos": 1, "eos": 2}, 1), ({"eos": 2}, 2)])
def test_without_pad_the_decoder_starts_with_bos_and_without_bos_with_eos(
    specials: dict[str, int], start: int, build: Build
) -> None:
    _, batch = corrupted(build("span-corruption", Vocabulary(1300, specials, tuple(SENTINELS)), 64), 64)
    assert (batch.streams["body"].tokens[:, 0] == start).all()


def test_t5_takes_568_tokens_for_512_positions(build: Build) -> None:
    objective = build("span-corruption", VOCABULARY, 512)
    assert objective.text_length(512) == 568
    assert objective.head_positions(512) == 114


@pytest.mark.parametrize("rate", [0.05, 0.15, 0.5, 0.85])
@pytest.mark.parametrize("mean_span", [1.0, 3.0])
def test_a_text_is_as_long_as_both_sides_allow(rate: float, mean_span: float, build: Build) -> None:
    objective = build("span-corruption", VOCABULARY, 64, rate=rate, mean_span=mean_span)
    for length in (3, 4, 17, 64):
        fits = [n for n in range(2, 200) if max(side_lengths(n, noise_size(n, rate, mean_span))) <= length]
        assert objective.text_length(length) == max(fits)


def test_each_position_has_the_document_of_its_token(t5: Objective) -> None:
    documents = torch.arange(90).expand(3, -1) // 30
    tokens = torch.arange(90).expand(3, -1) + 10
    batch = t5.corrupt({"body": Stream(tokens, documents=documents)}, {}, Draw(0, 0, torch.arange(3)))
    encoder, body = batch.streams["encoder"], batch.streams["body"]
    for side, side_tokens in ((encoder, encoder.tokens), (body, batch.targets["labels"])):
        assert side.documents is not None
        for row in range(3):
            for position, token in enumerate(side_tokens[row].tolist()):
                if token == EOS:
                    assert position == len(side_tokens[row]) - 1
                elif token not in SENTINELS:
                    assert side.documents[row, position] == (token - 10) // 30
                elif side is body:  # a sentinel belongs to the document of the next token
                    assert side.documents[row, position] == side.documents[row, position + 1]
            assert (side.documents[row].diff() >= 0).all()


def test_each_position_has_the_language_of_its_token(t5: Objective) -> None:
    kinds = torch.arange(90).expand(3, -1) // 30
    _, formed = corrupted(t5, 90, documents=kinds, languages=2 - kinds)
    for side in formed.streams.values():
        assert side.documents is not None
        assert side.languages is not None
        assert torch.equal(side.languages, 2 - side.documents)
    _, formed = corrupted(t5, 90, languages=kinds)
    assert {side.documents for side in formed.streams.values()} == {None}


def test_padding_is_not_predicted(t5: Objective) -> None:
    documents = torch.zeros(3, 60, dtype=torch.int64)
    documents[:, 40:] = PADDING
    tokens, batch = corrupted(t5, 60, documents=documents)
    labels = batch.targets["labels"]
    assert (labels == IGNORED).any(1).all()
    for row in range(3):
        padding = set(tokens[row, 40:].tolist())
        assert padding & set(labels[row].tolist()) == set()


def test_too_few_sentinels_are_refused_with_the_minimum(build: Build) -> None:
    few = Vocabulary(1300, {"eos": EOS}, tuple(SENTINELS[:27]))
    with raises_problem(SpecError, "too-few-sentinels", "568", "≥ 28", "27"):
        build("span-corruption", few, 512)
    build("span-corruption", Vocabulary(1300, {"eos": EOS}, tuple(SENTINELS[:28])), 512)


def test_a_tokenizer_without_an_end_mark_is_refused(build: Build) -> None:
    with raises_problem(SpecError, "missing-special-token", "eos"):
        build("span-corruption", Vocabulary(1300, {"pad": 0}, tuple(SENTINELS)), 64)


def test_a_length_too_short_for_a_span_is_rejected(build: Build) -> None:
    with raises_problem(SpecError, "too-short", "dims.length", "≥ 3", "2"):
        build("span-corruption", VOCABULARY, 2)
    build("span-corruption", VOCABULARY, 3)


def test_a_prompt_is_its_source_and_starts_the_decoder_with_padding(t5: Objective) -> None:
    assert t5.prompt([10, SENTINELS[0], 11]) == Prompt((PAD,), (10, SENTINELS[0], 11, EOS), EOS)
