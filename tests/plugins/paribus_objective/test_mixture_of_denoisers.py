"""Seven ways to spoil a text, counted, and each comes together again."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

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
    made: Objective, epoch: int = 0, index: torch.Tensor | None = None, **vectors: torch.Tensor
) -> TrainingExamples:
    index = torch.arange(B) if index is None else index
    text = torch.arange(N).repeat(len(index), 1) + 10
    return made.corrupt({"body": Stream(text, **vectors)}, {}, Draw(0, epoch, index))


def rows(batch: TrainingExamples) -> list[tuple[int, list[int], list[int]]]:
    """The mode of each example, and both of its sides, without eos and padding."""
    encoder, labels = batch.streams["encoder"], batch.targets["labels"]
    assert encoder.documents is not None
    found = []
    for tokens, documents, written in zip(encoder.tokens, encoder.documents, labels, strict=True):
        read = tokens[documents >= 0].tolist()
        said = written[written != IGNORED].tolist()
        assert (tokens[documents < 0] == PAD).all()
        assert read.pop() == said.pop() == EOS
        found.append((read[0], read[1:], said))
    return found


def merged(read: list[int], written: list[int]) -> list[int]:
    """The text: each sentinel of what is read replaced by what follows it in what is written."""
    taken: dict[int, list[int]] = {}
    for token in written:
        if token in SENTINELS:
            taken[token] = []
        else:
            taken[list(taken)[-1]].append(token)
    assert [token for token in read if token in SENTINELS] == list(SENTINELS[: len(taken)]) == list(taken)
    return [token for each in read for token in (taken[each] if each in SENTINELS else [each])]


def test_both_sides_come_together_to_the_original_in_every_mode(build: Build) -> None:
    found = rows(formed(build("ul2", VOCABULARY, 256)))
    assert {mode for mode, _, _ in found} == set(MODES)
    for _, read, written in found:
        assert merged(read, written) == list(range(10, 10 + N))


def kind(read: list[int], written: list[int]) -> tuple[int, int]:
    return len(written) - sum(token in SENTINELS for token in written), sum(token in SENTINELS for token in read)


def test_each_denoiser_is_as_likely_and_says_which_mode_it_is_of(build: Build) -> None:
    made = build("ul2", VOCABULARY, 256)
    amounts = {each.noise_size(N): each.mode for each in DENOISERS}
    assert len(amounts) == len(DENOISERS)
    counts = dict.fromkeys(amounts, 0)
    for epoch in range(8):
        for mode, read, written in rows(formed(made, epoch)):
            of = next(each for each in amounts if tuple(each) == kind(read, written))
            assert MODES[amounts[of]] == mode
            counts[of] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_weights_say_how_often_each_mode_is(build: Build) -> None:
    made = build("ul2", VOCABULARY, 256, regular=1.0, sequential=2.0, extreme=1.0)
    modes = [mode for epoch in range(8) for mode, _, _ in rows(formed(made, epoch))]
    counts = [modes.count(mode) for mode in MODES]
    assert stats.chisquare(counts, np.array([1, 2, 1]) / 4 * len(modes)).pvalue > 1e-4


def test_the_sequential_mode_takes_the_last_quarter(build: Build) -> None:
    made = build("ul2", VOCABULARY, 256, regular=0.0, extreme=0.0)
    for mode, read, written in rows(formed(made)):
        assert mode == MODES[SEQUENTIAL]
        assert read == [*range(10, 160), SENTINELS[0]]
        assert written == [SENTINELS[0], *range(160, 210)]


@pytest.mark.parametrize(("mode", "rates"), [("regular", {0.15}), ("extreme", {0.15, 0.5})])
def test_the_regular_and_the_extreme_mode_take_as_much_as_they_say(mode: str, rates: set[float], build: Build) -> None:
    made = build("ul2", VOCABULARY, 256, **{"regular": 0.0, "sequential": 0.0, "extreme": 0.0, mode: 1.0})
    assert {kind(read, written)[0] / N for _, read, written in rows(formed(made))} == rates


def test_batches_of_any_mixture_have_one_size(build: Build) -> None:
    made = build("ul2", VOCABULARY, 256)
    text = made.text_length(256)
    widths = [side_lengths(text, each.noise_size(text)) for each in DENOISERS]
    assert max(max(read for read, _ in widths) + 1, *(written for _, written in widths)) <= 256
    longer = [side_lengths(text + 1, each.noise_size(text + 1)) for each in DENOISERS]
    assert max(max(read for read, _ in longer) + 1, *(written for _, written in longer)) > 256
    for index in (torch.arange(2), torch.arange(40)):
        batch = formed(made, 0, index)
        of = [side_lengths(N, each.noise_size(N)) for each in DENOISERS]
        assert batch.streams["encoder"].tokens.shape == (len(index), max(read for read, _ in of) + 1)
        assert batch.targets["labels"].shape == (len(index), max(written for _, written in of))
        assert made.head_positions(256) == max(written for _, written in widths)


def test_an_example_is_spoilt_the_same_alone(build: Build) -> None:
    made = build("ul2", VOCABULARY, 256)
    whole = rows(formed(made, 3))
    assert rows(formed(made, 3, torch.arange(40, 60))) == whole[40:60]


def test_documents_and_languages_come_along(build: Build) -> None:
    documents = (torch.arange(N).repeat(B, 1) >= 90).long()
    batch = formed(build("ul2", VOCABULARY, 256), documents=documents, languages=documents)
    for path in ("encoder", "body"):
        stream = batch.streams[path]
        assert stream.documents is not None
        assert stream.languages is not None
        there = stream.documents >= 0
        text = there & (stream.tokens >= 10) & (stream.tokens < 1000)
        if path == "encoder":
            assert torch.equal(stream.documents[text], (stream.tokens[text] >= 100).long())
        assert torch.equal(stream.documents[there], stream.languages[there])
        assert set(stream.documents[~there].tolist()) == {PADDING}


@pytest.mark.parametrize(
    ("length", "sentinels", "words"),
    [
        (3, 8, r"error\[too-short\] dims\.length: .* got a length of 3; valid: ≥ 4"),
        (64, 8, r"error\[too-few-sentinels\] tokenizer: .* 11 spans .* the tokenizer has 8;"),
        (4, 2, r"error\[too-few-sentinels\] tokenizer: .* 1 spans .* the tokenizer has 2; valid: ≥ 4"),
    ],
)
def test_what_there_is_no_room_for_is_refused(length: int, sentinels: int, words: str, build: Build) -> None:
    with pytest.raises(SpecError, match=words):
        build("ul2", Vocabulary(1103, {"pad": PAD, "eos": EOS}, SENTINELS[:sentinels]), length)


def test_a_mixture_of_nothing_is_refused(build: Build) -> None:
    with pytest.raises(ValueError, match="`extreme` > 0, got 0 for all"):
        build("ul2", VOCABULARY, regular=0.0, sequential=0.0, extreme=0.0)


def test_a_text_is_read_in_the_sequential_mode_and_goes_on_behind_its_sentinel(build: Build) -> None:
    prompt = build("ul2", VOCABULARY).prompt([20, 21])
    assert prompt is not None
    assert prompt.source == (MODES[SEQUENTIAL], 20, 21, SENTINELS[0], EOS)
    assert (prompt.body, prompt.stop, prompt.bidirectional) == ((PAD, SENTINELS[0]), EOS, False)
