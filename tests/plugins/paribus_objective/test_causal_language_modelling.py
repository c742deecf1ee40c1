"""Causal language modelling: the label of a row is the next token of its document."""

from collections.abc import Callable

import pytest
import torch

from paribus import IGNORED, PADDING, Draw, Objective, Prompt, Stream, TrainingExamples, Vocabulary

Build = Callable[..., Objective]


@pytest.fixture
def clm(build: Build, vocabulary: Vocabulary) -> Objective:
    return build("clm", vocabulary)


def corrupted(clm: Objective, stream: Stream) -> TrainingExamples:
    return clm.corrupt({"body": stream}, {}, Draw(0, 0, torch.arange(len(stream.tokens))))


def test_the_label_of_a_position_is_the_next_token(clm: Objective) -> None:
    tokens = torch.arange(6, 6 + 2 * 33).reshape(2, 33)
    examples = corrupted(clm, Stream(tokens))
    body, labels = examples.streams["body"].tokens, examples.targets["labels"]
    assert body.shape == labels.shape == (2, 32)
    assert torch.equal(body, tokens[:, :-1])
    assert torch.equal(labels[:, :-1], body[:, 1:])
    assert torch.equal(labels[:, -1], tokens[:, -1])


def test_an_example_takes_one_token_more_than_its_positions(clm: Objective) -> None:
    assert clm.text_length(32) == 33
    assert clm.head_positions(32) == 32


def test_the_first_token_of_another_document_is_not_predicted(clm: Objective) -> None:
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2]])
    examples = corrupted(clm, Stream(torch.arange(8)[None], documents=documents))
    assert examples.targets["labels"].tolist() == [[1, 2, IGNORED, 4, IGNORED, 6, 7]]
    assert examples.streams["body"].documents is not None
    assert torch.equal(examples.streams["body"].documents, documents[:, :-1])


def test_padding_is_neither_a_label_nor_predicted_from(clm: Objective) -> None:
    documents = torch.tensor([[0, 0, 0, PADDING, PADDING], [PADDING, PADDING, 0, 0, 0]])
    examples = corrupted(clm, Stream(torch.arange(10).reshape(2, 5), documents=documents))
    assert examples.targets["labels"].tolist() == [[1, 2, IGNORED, IGNORED], [IGNORED, IGNORED, 8, 9]]


def test_every_vector_of_the_stream_is_shortened(clm: Objective) -> None:
    vectors = [torch.arange(10).reshape(2, 5) for _ in Stream._fields]
    body = corrupted(clm, Stream(*vectors)).streams["body"]
    assert all(torch.equal(vector, vectors[0][:, :-1]) for vector in body if vector is not None)
    assert None not in body


def test_other_streams_are_unchanged(clm: Objective) -> None:
    encoder = Stream(torch.ones(1, 3, dtype=torch.int64))
    examples = clm.corrupt({"body": Stream(torch.ones(1, 5)), "encoder": encoder}, {}, Draw(0, 0, torch.arange(1)))
    assert examples.streams["encoder"] is encoder


def test_a_prompt_is_its_text_or_a_start_token_if_empty(clm: Objective, build: Build, vocabulary: Vocabulary) -> None:
    eos = vocabulary.specials["eos"]
    assert clm.prompt([7, 8]) == Prompt((7, 8), stop=eos)
    assert clm.prompt([]) == Prompt((eos,), stop=eos)
    assert build("clm", Vocabulary(9, {"sep": 3})).prompt([]) == Prompt((3,), stop=3)
    assert build("clm", Vocabulary(9, {})).prompt([]) == Prompt(())
