"""Prefix language modelling: visibility of the prefix, for decoders and encoder-decoders."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tests.fixtures.problems import raises_problem

import paribus
from paribus import IGNORED, PADDING, Draw, Objective, Shape, SpecError, Stream, TrainingExamples, Vocabulary
from paribus.assembly.forward_pass import BatchForward
from paribus.parts.batch import Batch
from paribus_objective.prefix_language_modelling import PrefixLanguageModelling

Build = Callable[..., Objective]

PAD, EOS = 0, 1
VOCABULARY = Vocabulary(1000, {"pad": PAD, "eos": EOS})
B, N = 200, 33


def tokens(count: int = B, length: int = N) -> torch.Tensor:
    return torch.arange(count * length).reshape(count, length) % 900 + 10


def formed(objective: Objective, epoch: int = 0, length: int = N, **vectors: torch.Tensor) -> TrainingExamples:
    return objective.corrupt({"body": Stream(tokens(length=length), **vectors)}, {}, Draw(0, epoch, torch.arange(B)))


@pytest.fixture
def encoder_decoder() -> Objective:
    """Prefix language modelling in an encoder-decoder."""
    shape = Shape(8, 2, 4, N - 1, 1000, layers=1)
    shape_with_encoder = Shape(
        8, 2, 4, N - 1, 1000, layers=1, other_shapes=(Shape(8, 2, 4, N - 1, 1000, layers=1, stack="encoder"),)
    )
    assert not PrefixLanguageModelling(shape, VOCABULARY, no_norm).has_encoder
    return PrefixLanguageModelling(shape_with_encoder, VOCABULARY, no_norm)


def no_norm(width: int | None = None) -> Any:
    raise AssertionError("a head without a transform has none")


def test_tokens_from_the_last_of_the_prefix_predict_the_next_token(build: Build) -> None:
    batch = formed(build("prefix-lm", VOCABULARY, N - 1))
    body, labels = batch.streams["body"], batch.targets["labels"]
    assert torch.equal(body.tokens, tokens()[:, :-1])
    assert body.order is not None
    for order, label, text in zip(body.order.tolist(), labels.tolist(), tokens().tolist(), strict=True):
        prefix = order[0] + 1
        assert order == [*([prefix - 1] * prefix), *range(prefix, N - 1)]
        assert label == [*([IGNORED] * (prefix - 1)), *text[prefix:]]


def test_an_encoder_reads_the_prefix_and_the_decoder_predicts_the_rest(encoder_decoder: Objective) -> None:
    batch = formed(encoder_decoder)
    encoder, decoder, labels = batch.streams["encoder"], batch.streams["body"], batch.targets["labels"]
    assert encoder.documents is not None
    assert decoder.documents is not None
    for b, text in enumerate(tokens().tolist()):
        prefix = int((encoder.documents[b] == 0).sum())
        assert encoder.tokens[b].tolist() == [*text[:prefix], *([PAD] * (N - 1 - prefix))]
        assert labels[b].tolist() == [*text[prefix:], *([IGNORED] * (prefix - 1))]
        assert decoder.tokens[b, : N - prefix].tolist() == [PAD, *text[prefix:-1]]
        assert decoder.documents[b].tolist() == [*([0] * (N - prefix)), *([PADDING] * (prefix - 1))]


@pytest.mark.parametrize("encodes", [False, True])
def test_every_prefix_length_is_equally_likely(encodes: bool, build: Build, encoder_decoder: Objective) -> None:
    objective = encoder_decoder if encodes else build("prefix-lm", VOCABULARY, N - 1)
    label_counts = torch.cat([(formed(objective, epoch).targets["labels"] != IGNORED).sum(1) for epoch in range(20)])
    counts = np.bincount(label_counts.numpy(), minlength=N)[1:]
    assert len(counts) == N - 1
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize(("share", "length"), [(0.0, 1), (0.25, 8), (0.5, 16), (1.0, 32)])
def test_a_prefix_share_leaves_at_least_one_token(share: float, length: int, build: Build) -> None:
    labels = formed(build("prefix-lm", VOCABULARY, N - 1, prefix=share)).targets["labels"]
    assert set((labels != IGNORED).sum(1).tolist()) == {N - length}


def test_separate_documents_have_their_own_prefixes(build: Build) -> None:
    documents = torch.zeros(B, N, dtype=torch.int64)
    documents[:, 10:], documents[:, 25:] = 1, PADDING
    batch = formed(build("prefix-lm", VOCABULARY, N - 1), documents=documents)
    order, labels = batch.streams["body"].order, batch.targets["labels"]
    assert order is not None
    assert (labels[:, 9] == IGNORED).all()
    assert (labels[:, 24:] == IGNORED).all()
    for start, end in ((0, 9), (10, 24)):
        label_counts = (labels[:, start:end] != IGNORED).sum(1)
        assert label_counts.min() >= 1
        assert torch.equal(order[:, start], end - label_counts)
    lengths = torch.stack([order[:, 0], order[:, 10] - 10], dim=1).double()
    assert abs(torch.corrcoef(lengths.T)[0, 1]) < 4 / B**0.5  # independent draws


@pytest.mark.thorough
def test_the_prefix_is_bidirectional_and_the_rest_causal() -> None:
    spec = paribus.spec("gpt-tiny", "objective=prefix-lm", "dims.length=12", "dims.width=16", "dims.vocabulary=300")
    model = paribus.assemble(spec).double().eval()
    text = torch.randint(0, 250, (3, 13), generator=torch.Generator().manual_seed(0))
    objective = model.objective("prefix-lm")
    batch = objective.corrupt({"body": Stream(text)}, {}, Draw(0, 5, torch.arange(3)))
    body = batch.streams["body"]
    assert body.order is not None

    def hidden(stream: Stream) -> torch.Tensor:
        run = BatchForward(model.topology, Batch({"body": stream}, {"prefix-lm": batch.targets}, torch.arange(3)))
        return run.of("prefix-lm").hidden("body")

    whole = hidden(body)
    for position in range(12):
        changed = body.tokens.clone()
        changed[:, position] = (changed[:, position] + 1) % 250
        moved = (hidden(body._replace(tokens=changed)) - whole).abs().amax(-1) > 1e-9
        for b in range(3):
            prefix = int(body.order[b, 0]) + 1
            start = 0 if position < prefix else position
            assert moved[b].tolist() == [row >= start for row in range(12)]


def test_an_encoder_decoder_is_trained_by_both_sides() -> None:
    model = paribus.assemble(paribus.spec("t5-tiny", "objective=prefix-lm", "dims.length=12", "dims.width=16"))
    text = torch.randint(0, 250, (4, 13), generator=torch.Generator().manual_seed(0))
    batch = model.objective("prefix-lm").corrupt({"body": Stream(text)}, {}, Draw(0, 0, torch.arange(4)))
    model.loss(Batch(batch.streams, {"prefix-lm": batch.targets}, torch.arange(4))).backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in model.parameters())


@pytest.mark.parametrize("overrides", [("gpt-tiny", "attention=lstm", "position=none"), ("lstm-lm-tiny",)])
def test_recurrent_mixers_are_refused_in_a_decoder(overrides: tuple[str, ...]) -> None:
    with raises_problem(SpecError, "does-not-fit", "attention", "prefix-lm", "lstm"):
        paribus.spec(*overrides, "objective=prefix-lm")


def test_a_prompt_is_read_as_a_prefix(build: Build, encoder_decoder: Objective) -> None:
    decoder = build("prefix-lm", VOCABULARY).prompt([20, 21])
    assert decoder is not None
    assert (decoder.body, decoder.source, decoder.stop, decoder.bidirectional) == ((20, 21), None, EOS, True)
    prompt = encoder_decoder.prompt([20, 21])
    assert prompt is not None
    assert (prompt.body, prompt.source, prompt.stop, prompt.bidirectional) == ((PAD,), (20, 21), EOS, False)
    assert encoder_decoder.prompt([]) == prompt._replace(source=(EOS,))
