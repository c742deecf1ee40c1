"""Denoising: statistics of each kind of noise, and labels equal to the original text."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from tests.fixtures.problems import raises_problem

from paribus import IGNORED, PADDING, Draw, Objective, SpecError, Stream, TrainingExamples, Vocabulary
from paribus_objective.noise import Infilling

Build = Callable[..., Objective]

PAD, EOS, MASK = 0, 1, 2
VOCABULARY = Vocabulary(2000, {"pad": PAD, "eos": EOS, "mask": MASK})
NOTHING = {"infill": Infilling(rate=0.0), "permute": 0.0}
ALL = {"infill": Infilling(rate=0.2), "mask": 0.1, "delete": 0.1, "permute": 1.0, "rotate": 0.5}
B, N = 64, 90


def texts(count: int = B, length: int = N) -> Stream:
    """Tokens numbered by position, with eos after 40 of them and sentences of 9."""
    tokens = torch.arange(length).repeat(count, 1) + 10
    tokens[:, 40] = EOS
    sentences = torch.arange(length).repeat(count, 1) // 9
    sentences[:, 41:] += 1
    return Stream(tokens, sentences=sentences)


def formed(objective: Objective, body: Stream, epoch: int = 0) -> TrainingExamples:
    return objective.corrupt({"body": body}, {}, Draw(0, epoch, torch.arange(len(body.tokens))))


def encoder_texts(objective: Objective, body: Stream, epoch: int = 0) -> list[list[int]]:
    """The encoder's input of each text, without eos and padding."""
    encoder = formed(objective, body, epoch).streams["encoder"]
    assert encoder.documents is not None
    texts = []
    for tokens, documents in zip(encoder.tokens.tolist(), encoder.documents.tolist(), strict=True):
        end = documents.index(PADDING) if PADDING in documents else len(documents)
        assert set(documents[end:]) <= {PADDING}
        assert set(tokens[end:]) <= {PAD}
        assert tokens[end - 1] == EOS
        texts.append(tokens[: end - 1])
    return texts


@pytest.mark.parametrize("options", [{}, NOTHING, ALL])
def test_the_decoder_predicts_the_original_text(options: dict[str, float], build: Build) -> None:
    body = texts()
    batch = formed(build("denoise", VOCABULARY, N + 1, **options), body)
    labels, inputs = batch.targets["labels"], batch.streams["body"].tokens
    assert torch.equal(labels[:, :-1], body.tokens)
    assert (labels[:, -1] == EOS).all()
    assert torch.equal(inputs[:, 1:], labels[:, :-1])
    assert (inputs[:, 0] == PAD).all()
    assert batch.streams["body"].documents is None
    assert batch.streams["body"].sentences is None


def test_without_noise_options_the_text_is_unchanged(build: Build) -> None:
    body = texts()
    assert encoder_texts(build("denoise", VOCABULARY, N + 1, **NOTHING), body) == body.tokens.tolist()


def test_each_missing_span_is_replaced_by_one_mask(build: Build) -> None:
    objective = build("denoise", VOCABULARY, N + 1, permute=0.0)
    for row in encoder_texts(objective, texts()):
        remaining = [token if token != EOS else 50 for token in row if token != MASK]
        assert remaining == sorted(remaining)
        assert row.count(EOS) == 1
        assert abs(len(remaining) - (N - 0.3 * 89)) < 1
        text = [9, *(token if token != EOS else 50 for token in row), 10 + N]
        for token, next_token in itertools.pairwise(text):
            if MASK not in {token, next_token}:
                assert next_token == token + 1  # every missing token has a mask
        assert row.count(MASK) <= N - len(remaining)


def spans(objective: Objective, epochs: int = 12) -> list[int]:
    """Numbers of tokens that each mask replaces; the last span of a text may be truncated."""
    body = Stream(torch.arange(400).repeat(B, 1) + 10)
    lengths: list[int] = []
    for epoch in range(epochs):
        for row in encoder_texts(objective, body, epoch):
            text = [9, *row, 410]
            for position, token in enumerate(text):
                if token == MASK:
                    assert text[position - 1] != MASK
                    lengths.append(text[position + 1] - text[position - 1] - 1)
    return lengths


def test_span_lengths_follow_the_poisson_distribution(build: Build) -> None:
    lengths = spans(build("denoise", VOCABULARY, 401, permute=0.0))
    counts = np.bincount(lengths, minlength=20)
    expected = stats.poisson(3).pmf(np.arange(len(counts)))
    assert len(lengths) > 25_000
    # About one of forty spans of a text is truncated, and a mask after the last token is left out.
    assert abs(counts / counts.sum() - expected).max() < 0.008
    assert np.mean(lengths) == pytest.approx(3, abs=0.05)


def test_the_infilled_share_is_exact_in_expectation(build: Build) -> None:
    objective = build("denoise", VOCABULARY, N + 1, permute=0.0)
    remaining = [
        sum(token != MASK for token in row) for epoch in range(20) for row in encoder_texts(objective, texts(), epoch)
    ]
    expected = 0.3 * 89
    share = expected % 1
    error = (share * (1 - share) / len(remaining)) ** 0.5
    assert np.mean(remaining) == pytest.approx(N - expected, abs=4 * error)


def test_every_token_is_equally_likely_to_be_removed(build: Build) -> None:
    objective = build("denoise", VOCABULARY, 41, permute=0.0)
    body = Stream(torch.arange(40).repeat(2000, 1) + 10)
    counts = np.zeros(40)
    for row in encoder_texts(objective, body):
        deleted = np.ones(40)
        deleted[np.array([token for token in row if token != MASK]) - 10] = 0
        counts += deleted
    # Neighbours are masked together, so the variance is larger than binomial by the mean length of a span.
    expected = counts.mean()
    assert abs(counts[1:-1] - expected).max() < 4 * (expected * 0.7 * 4) ** 0.5


def test_whole_sentences_are_permuted_within_their_text(build: Build) -> None:
    objective = build("denoise", VOCABULARY, N + 1, **{**NOTHING, "permute": 1.0})
    body = texts()
    assert body.sentences is not None
    orders = set()
    for row in encoder_texts(objective, body):
        assert row[40] == EOS
        assert sorted(row[:40]) == list(range(10, 50))
        assert sorted(row[41:]) == list(range(51, 100))
        numbers = [int(body.sentences[0, token - 10]) for token in row if token != EOS]
        runs = [number for number, _ in itertools.groupby(numbers)]
        assert len(runs) == len(set(runs)) == len(set(numbers))
        assert all(
            next_token == token + 1
            for token, next_token in itertools.pairwise(row)
            if EOS not in (token, next_token) and body.sentences[0, token - 10] == body.sentences[0, next_token - 10]
        )
        orders.add(tuple(runs))
    assert len(orders) > 60


def test_every_order_of_sentences_is_equally_likely(build: Build) -> None:
    objective = build("denoise", VOCABULARY, 13, **{**NOTHING, "permute": 1.0})
    body = Stream(torch.arange(12).repeat(3000, 1) + 10, sentences=torch.arange(12).repeat(3000, 1) // 4)
    orders = [tuple(token // 4 for token in row[::4]) for row in encoder_texts(objective, body)]
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-4


def test_sentences_that_are_not_permuted_keep_their_positions(build: Build) -> None:
    objective = build("denoise", VOCABULARY, 41, **{**NOTHING, "permute": 0.5})
    body = Stream(torch.arange(40).repeat(500, 1) + 10, sentences=torch.arange(40).repeat(500, 1) // 4)
    unmoved = [
        sum(row[number * 4] == 10 + number * 4 for number in range(10)) for row in encoder_texts(objective, body)
    ]
    assert min(unmoved) >= 5
    assert np.mean(unmoved) == pytest.approx(6, abs=4 / 500**0.5)  # five, and one of five others on average


def test_a_rotated_text_begins_with_any_of_its_tokens(build: Build) -> None:
    objective = build("denoise", VOCABULARY, 13, **{**NOTHING, "rotate": 1.0})
    body = Stream(torch.arange(12).repeat(3000, 1) + 10)
    rows = encoder_texts(objective, body)
    assert all(row == [*range(row[0], 22), *range(10, row[0])] for row in rows)
    assert stats.chisquare(np.bincount([row[0] - 10 for row in rows], minlength=12)).pvalue > 1e-4


def test_texts_are_rotated_independently_and_eos_stays_last(build: Build) -> None:
    objective = build("denoise", VOCABULARY, N + 1, **{**NOTHING, "rotate": 0.5})
    rows = [row for epoch in range(10) for row in encoder_texts(objective, texts(), epoch)]
    assert {row[40] for row in rows} == {EOS}
    rotated = [(row[0] != 10, row[41] != 51) for row in rows]
    for stretch, length in ((0, 40), (1, 49)):
        expected = 0.5 * (1 - 1 / length)
        assert np.mean([flags[stretch] for flags in rotated]) == pytest.approx(expected, abs=4 * 0.5 / len(rows) ** 0.5)


@pytest.mark.parametrize("name", ["mask", "delete"])
def test_masked_and_deleted_tokens_are_equally_likely(name: str, build: Build) -> None:
    objective = build("denoise", VOCABULARY, 41, **{**NOTHING, name: 0.25})
    body = Stream(torch.arange(40).repeat(800, 1) + 10)
    counts = np.zeros(40)
    for row in encoder_texts(objective, body):
        remaining = [token for token in row if token != MASK]
        assert len(remaining) == 30
        assert len(row) == (40 if name == "mask" else 30)
        assert remaining == sorted(remaining)
        if name == "mask":
            assert all(token in (MASK, 10 + position) for position, token in enumerate(row))
        removed = np.ones(40)
        removed[np.array(remaining) - 10] = 0
        counts += removed
    assert stats.chisquare(counts).pvalue > 1e-4


def test_all_noise_together_keeps_the_declared_size_and_special_tokens(build: Build) -> None:
    objective = build("denoise", VOCABULARY, N + 1, **ALL)
    for row in encoder_texts(objective, texts()):
        assert row.count(EOS) == 1
        remaining = [token for token in row if token not in (MASK, EOS)]
        assert len(remaining) == len(set(remaining))
        assert len(remaining) == pytest.approx(89 * 0.6, abs=3)
        cut = row.index(EOS)
        assert set(row[:cut]) <= {MASK, *range(10, 50)}
        assert set(row[cut + 1 :]) <= {MASK, *range(51, 100)}


def test_no_text_grows_even_with_short_spans(build: Build) -> None:
    objective = build("denoise", VOCABULARY, N + 1, infill=Infilling(rate=0.5, mean_span=1.0), permute=0.0)
    rows = [row for epoch in range(5) for row in encoder_texts(objective, texts(), epoch)]
    assert max(map(len, rows)) <= N
    assert all(row.count(MASK) <= N - (len(row) - row.count(MASK)) for row in rows)


def test_separate_documents_stay_separate_on_both_sides(build: Build) -> None:
    objective = build("denoise", VOCABULARY, N + 1, **ALL)
    plain = texts()
    documents = (torch.arange(N).repeat(B, 1) >= 41).long()
    documents[:, 80:] = PADDING
    batch = formed(objective, plain._replace(documents=documents, languages=documents.clamp(min=0)))
    encoder, decoder = batch.streams["encoder"], batch.streams["body"]
    assert encoder.documents is not None
    assert encoder.languages is not None
    assert decoder.documents is not None
    assert torch.equal(decoder.documents[:, :-1], documents)
    assert (batch.targets["labels"][:, 80:] == IGNORED).all()
    for tokens, token_documents, token_languages in zip(
        encoder.tokens, encoder.documents, encoder.languages, strict=True
    ):
        for token, document, language in zip(
            tokens.tolist(), token_documents.tolist(), token_languages.tolist(), strict=True
        ):
            if token > MASK and document >= 0:
                assert document == language == int(token > 50)


def test_a_text_of_one_token_is_infilled_or_unchanged(build: Build) -> None:
    objective = build("denoise", VOCABULARY, 2)
    rows = encoder_texts(objective, Stream(torch.full((100, 1), 20)))
    assert {tuple(row) for row in rows} == {(MASK,), (20,)}  # unchanged if the first drawn span is empty


def test_shares_that_sum_to_more_than_1_are_refused(build: Build) -> None:
    with pytest.raises(ValueError, match=r"`infill.rate` .* ≤ 1, got 1.2"):
        build("denoise", VOCABULARY, mask=0.5, delete=0.4)


def test_a_length_of_one_is_rejected(build: Build) -> None:
    with raises_problem(SpecError, "too-short", "dims.length", "1"):
        build("denoise", VOCABULARY, 1)


def test_a_prompt_reads_the_text_and_starts_the_decoder(build: Build) -> None:
    prompt = build("denoise", VOCABULARY).prompt([20, MASK, 30])
    assert prompt is not None
    assert (prompt.body, prompt.source, prompt.stop, prompt.bidirectional) == ((PAD,), (20, MASK, 30, EOS), EOS, False)
