"""UL2's seven denoisers: their shares, and both sides together equal the original text."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from tests.fixtures.problems import raises_problem

from paribus import IGNORED, PADDING, Draw, Objective, SpecError, Stream, TrainingExamples, Vocabulary
from paribus_objective.mixture_of_denoisers import DENOISERS, SEQUENTIAL
from paribus_objective.spans import side_lengths

Build = Callable[..., Objective]

PAD, EOS = 0, 1
SENTINELS = tuple(range(1000, 1103))
MODES = SENTINELS[-3:]
VOCABULARY = Vocabulary(1103, {"pad": PAD, "eos": EOS}, SENTINELS)
B, N = 350, 200


def formed(
    objective: Objective, epoch: int = 0, index: torch.Tensor | None = None, **vectors: torch.Tensor
) -> TrainingExamples:
    index = torch.arange(B) if index is None else index
    text = torch.arange(N).repeat(len(index), 1) + 10
    return objective.corrupt({"body": Stream(text, **vectors)}, {}, Draw(0, epoch, index))


def rows(batch: TrainingExamples) -> list[tuple[int, list[int], list[int]]]:
    """The mode and both sides of each example, without eos and padding."""
    encoder, labels = batch.streams["encoder"], batch.targets["labels"]
    assert encoder.documents is not None
    result = []
    for tokens, documents, target in zip(encoder.tokens, encoder.documents, labels, strict=True):
        source = tokens[documents >= 0].tolist()
        target_tokens = target[target != IGNORED].tolist()
        assert (tokens[documents < 0] == PAD).all()
        assert source.pop() == target_tokens.pop() == EOS
        result.append((source[0], source[1:], target_tokens))
    return result


def merged(source: list[int], target: list[int]) -> list[int]:
    """The text, with each sentinel of the input replaced by its tokens of the target."""
    spans: dict[int, list[int]] = {}
    for token in target:
        if token in SENTINELS:
            spans[token] = []
        else:
            spans[list(spans)[-1]].append(token)
    assert [token for token in source if token in SENTINELS] == list(SENTINELS[: len(spans)]) == list(spans)
    return [token for symbol in source for token in (spans[symbol] if symbol in SENTINELS else [symbol])]


def test_both_sides_together_are_the_original_in_every_mode(build: Build) -> None:
    examples = rows(formed(build("ul2", VOCABULARY, 256)))
    assert {mode for mode, _, _ in examples} == set(MODES)
    for _, source, target in examples:
        assert merged(source, target) == list(range(10, 10 + N))


def span_counts(source: list[int], target: list[int]) -> tuple[int, int]:
    return len(target) - sum(token in SENTINELS for token in target), sum(token in SENTINELS for token in source)


@pytest.mark.thorough
def test_denoisers_are_equally_likely_and_begin_with_their_mode_token(build: Build) -> None:
    objective = build("ul2", VOCABULARY, 256)
    amounts = {denoiser.noise_size(N): denoiser.mode for denoiser in DENOISERS}
    assert len(amounts) == len(DENOISERS)
    counts = dict.fromkeys(amounts, 0)
    for epoch in range(8):
        for mode, source, target in rows(formed(objective, epoch)):
            size = next(denoiser for denoiser in amounts if tuple(denoiser) == span_counts(source, target))
            assert MODES[amounts[size]] == mode
            counts[size] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_modes_follow_their_weights(build: Build) -> None:
    objective = build("ul2", VOCABULARY, 256, regular=1.0, sequential=2.0, extreme=1.0)
    modes = [mode for epoch in range(8) for mode, _, _ in rows(formed(objective, epoch))]
    counts = [modes.count(mode) for mode in MODES]
    assert stats.chisquare(counts, np.array([1, 2, 1]) / 4 * len(modes)).pvalue > 1e-4


def test_the_sequential_mode_takes_the_last_quarter(build: Build) -> None:
    objective = build("ul2", VOCABULARY, 256, regular=0.0, extreme=0.0)
    for mode, source, target in rows(formed(objective)):
        assert mode == MODES[SEQUENTIAL]
        assert source == [*range(10, 160), SENTINELS[0]]
        assert target == [SENTINELS[0], *range(160, 210)]


@pytest.mark.parametrize(("mode", "rates"), [("regular", {0.15}), ("extreme", {0.15, 0.5})])
def test_regular_and_extreme_mode_remove_their_shares(mode: str, rates: set[float], build: Build) -> None:
    objective = build("ul2", VOCABULARY, 256, **{"regular": 0.0, "sequential": 0.0, "extreme": 0.0, mode: 1.0})
    assert {span_counts(source, target)[0] / N for _, source, target in rows(formed(objective))} == rates


def test_batches_of_any_mixture_have_one_size(build: Build) -> None:
    objective = build("ul2", VOCABULARY, 256)
    text = objective.text_length(256)
    widths = [side_lengths(text, denoiser.noise_size(text)) for denoiser in DENOISERS]
    assert max(max(source for source, _ in widths) + 1, *(target for _, target in widths)) <= 256
    longer = [side_lengths(text + 1, denoiser.noise_size(text + 1)) for denoiser in DENOISERS]
    assert max(max(source for source, _ in longer) + 1, *(target for _, target in longer)) > 256
    for index in (torch.arange(2), torch.arange(40)):
        batch = formed(objective, 0, index)
        lengths = [side_lengths(N, denoiser.noise_size(N)) for denoiser in DENOISERS]
        assert batch.streams["encoder"].tokens.shape == (len(index), max(source for source, _ in lengths) + 1)
        assert batch.targets["labels"].shape == (len(index), max(target for _, target in lengths))
        assert objective.head_positions(256) == max(target for _, target in widths)


def test_documents_and_languages_are_kept(build: Build) -> None:
    documents = (torch.arange(N).repeat(B, 1) >= 90).long()
    batch = formed(build("ul2", VOCABULARY, 256), documents=documents, languages=documents)
    for path in ("encoder", "body"):
        stream = batch.streams[path]
        assert stream.documents is not None
        assert stream.languages is not None
        is_token = stream.documents >= 0
        text = is_token & (stream.tokens >= 10) & (stream.tokens < 1000)
        if path == "encoder":
            assert torch.equal(stream.documents[text], (stream.tokens[text] >= 100).long())
        assert torch.equal(stream.documents[is_token], stream.languages[is_token])
        assert set(stream.documents[~is_token].tolist()) == {PADDING}


@pytest.mark.parametrize(
    ("length", "sentinels", "code", "values"),
    [
        (3, 8, "too-short", ("dims.length", "3", "≥ 4")),
        (64, 8, "too-few-sentinels", ("tokenizer", "11", "8")),
        (4, 2, "too-few-sentinels", ("tokenizer", "1", "2", "≥ 4")),
    ],
)
def test_too_short_a_length_or_too_few_sentinels_are_rejected(
    length: int, sentinels: int, code: str, values: tuple[str, ...], build: Build
) -> None:
    with raises_problem(SpecError, code, *values):
        build("ul2", Vocabulary(1103, {"pad": PAD, "eos": EOS}, SENTINELS[:sentinels]), length)


def test_a_mixture_without_weight_is_refused(build: Build) -> None:
    with pytest.raises(ValueError, match="`extreme` > 0, got 0 for all"):
        build("ul2", VOCABULARY, regular=0.0, sequential=0.0, extreme=0.0)


def test_a_prompt_is_in_the_sequential_mode_and_continues_after_a_sentinel(build: Build) -> None:
    prompt = build("ul2", VOCABULARY).prompt([20, 21])
    assert prompt is not None
    assert prompt.source == (MODES[SEQUENTIAL], 20, 21, SENTINELS[0], EOS)
    assert (prompt.body, prompt.stop, prompt.bidirectional) == ((PAD, SENTINELS[0]), EOS, False)
