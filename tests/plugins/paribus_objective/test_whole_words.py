"""Whole-word masking, compared with a loop; n-grams, with ALBERT's distribution."""

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats
from tests.fixtures.problems import raises_problem
from torch import Tensor

from paribus import IGNORED, PADDING, Draw, SpecError, Stream, Vocabulary
from paribus_objective.masking import Masking
from paribus_objective.span_masking import Spans
from paribus_objective.whole_words import WordSelection, selection

SPECIALS = {"pad": 0, "cls": 1, "sep": 50, "mask": 3, "eos": 99}
BEGINS = frozenset(range(10, 45))
VOCABULARY = Vocabulary(100, SPECIALS, (97, 98), BEGINS)
B, T, RATE = 96, 120, 0.15
MOST = 18
LAWS = {
    "words": Spans(whole_words=True),
    "albert": Spans(max_length=3, whole_words=True),
    "spanbert": Spans(max_length=10, stop_probability=0.2, whole_words=True, joint_replacement=True),
}


def stream(start: int = 0, count: int = B) -> Stream:
    """Random words of a few pieces between cls and eos, with a sep between; some padded, some packed."""
    generator = torch.Generator().manual_seed(0)
    pieces = torch.tensor(sorted(set(range(100)) - VOCABULARY.reserved))
    tokens = pieces[torch.randint(0, len(pieces), (B, T), generator=generator)]
    tokens[:, 0], tokens[:, 60], tokens[:, -1] = 1, 50, 99
    tokens[-1], tokens[-1, 50] = 60, 10  # two words longer than the limit
    documents = torch.zeros_like(tokens)
    documents[::4, 90:] = 1
    documents[:-1:3, 100:] = PADDING
    rows = slice(start, start + count)
    return Stream(tokens[rows], documents=documents[rows])


def picked(law: str, epoch: int = 0, body: Stream | None = None, start: int = 0, rate: float = RATE) -> Tensor:
    """Mask of predicted tokens, (B, T)."""
    body = stream() if body is None else body
    masking = Masking(VOCABULARY, rate, 0.8, 0.1, selection(LAWS[law], rate, VOCABULARY))
    index = torch.arange(start, start + len(body.tokens))
    _, pick, labels = masking(body, min(MOST, body.tokens.shape[1]), Draw(0, epoch, index))
    return torch.zeros_like(body.tokens, dtype=torch.bool).scatter(1, pick, labels != IGNORED)


def words(tokens: list[int], documents: list[int]) -> list[list[list[int]]]:
    """Positions of the words of an example, for each stretch of text."""
    stretches: list[list[list[int]]] = []
    previous = None
    for row, (token, document) in enumerate(zip(tokens, documents, strict=True)):
        if token in VOCABULARY.reserved or document < 0:
            previous = None
            continue
        if previous != document:
            stretches.append([])
        if previous != document or token in BEGINS:
            stretches[-1].append([])
        stretches[-1][-1].append(row)
        previous = document
    return stretches


def by_hand(body: Stream, spans: Spans, b: int, epoch: int) -> set[int]:
    """Positions that ALBERT's code picks in one example; with runs of one word, those of BERT's code."""
    assert body.documents is not None
    stretches = words(body.tokens[b].tolist(), body.documents[b].tolist())
    starts = [(stretch, word_number) for stretch in stretches for word_number in range(len(stretch))]
    draw = Draw(0, epoch, torch.tensor([b]))
    text = sum(len(word) for stretch in stretches for word in stretch)
    share = float(np.floor(text * RATE + draw.uniform("share", 1)[0, 0].numpy()))
    room = min(max(int(share), 1), text, MOST)
    keys, span_keys = draw.uniform("pick", T)[0], draw.uniform("span", T)[0].double()
    chances = np.cumsum(spans.length_probabilities())
    selected: set[int] = set()
    order = sorted(range(len(starts)), key=lambda place: (float(keys[place]), place))
    for turn, place in enumerate(order):
        stretch, word_number = starts[place]
        n = 1 + int(sum(chances[:-1] <= float(span_keys[turn])))
        run = stretch[word_number : word_number + n]
        while run and sum(map(len, run)) > room - len(selected):
            run.pop()
        rows = set(itertools.chain(*run))
        if not rows & selected:
            selected |= rows
    if not selected:
        stretch, word_number = starts[order[0]]
        selected = set(stretch[word_number][:room])
    return selected


@pytest.mark.parametrize("law", LAWS)
def test_picks_equal_those_of_the_papers_code(law: str) -> None:
    body = stream()
    selected = picked(law, 3)
    for b in range(B):
        assert set(selected[b].nonzero().flatten().tolist()) == by_hand(body, LAWS[law], b, 3), b


@cache
def many_epochs(law: str) -> Tensor:
    return torch.cat([picked(law, epoch) for epoch in range(30)])


def test_words_are_masked_whole_unless_longer_than_the_limit() -> None:
    body, selected = stream(), many_epochs("words")
    assert body.documents is not None
    for b in range(B - 1):
        example_words = [
            word for stretch in words(body.tokens[b].tolist(), body.documents[b].tolist()) for word in stretch
        ]
        for word in example_words:
            assert set(selected[b::B][:, word].float().mean(1).tolist()) <= {0.0, 1.0}
    assert set(selected[B - 1 :: B].sum(1).tolist()) == {18}
    assert selected[B - 1 :: B, 0].any()
    assert selected[B - 1 :: B, 50].any()  # the beginning of the first or second word of a row


@pytest.mark.parametrize("law", LAWS)
def test_words_of_one_piece_fill_the_rate(law: str) -> None:
    body = stream()
    assert body.documents is not None
    text = (~torch.isin(body.tokens, torch.tensor(sorted(VOCABULARY.reserved))) & (body.documents >= 0)).sum(1)
    expected = RATE * text.repeat(30).double()
    error = (expected % 1 * (1 - expected % 1)).sum().sqrt()
    missing = expected.sum() - many_epochs(law).sum()
    assert -4 * error < missing < 4 * error + 0.01 * expected.sum()  # words that exceed the limit are skipped


def test_no_special_token_and_no_padding_is_picked() -> None:
    body, selected = stream(), picked("albert")
    assert body.documents is not None
    non_text = torch.isin(body.tokens, torch.tensor(sorted(VOCABULARY.reserved))) | (body.documents < 0)
    assert not (selected & non_text).any()


def test_every_word_of_one_piece_is_equally_likely() -> None:
    body = Stream(torch.full((512, 60), 20))
    selected = torch.cat([picked("words", epoch, body) for epoch in range(10)])
    assert stats.chisquare(selected.sum(0).numpy()).pvalue > 1e-4


def test_run_lengths_count_words_and_follow_the_distribution() -> None:
    body = Stream(torch.full((512, 240), 20))
    word_selection = WordSelection(LAWS["albert"], VOCABULARY)
    edges = np.concatenate(
        [
            np.diff(_edges(word_selection, body, epoch), axis=1) for epoch in range(8)
        ]  # 36 of 240 words; adjacent runs count once
    )
    lengths = edges[:, ::2][edges[:, ::2] > 0]
    counts = np.bincount(lengths, minlength=4)[1:4]
    # Adjacent runs count as one, and overlapping runs are skipped, long ones a little more often.
    probabilities = LAWS["albert"].length_probabilities()
    assert counts[0] > counts[1] > counts[2]
    assert abs(counts / counts.sum() - probabilities).max() < 0.06


def _edges(word_selection: WordSelection, body: Stream, epoch: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Starts and ends of runs in turn, (B, N), padded with the last end."""
    result = word_selection(np.zeros(body.tokens.shape, bool), body, RATE, 36, Draw(0, epoch, torch.arange(512)))
    chosen = np.zeros((512, 242), dtype=np.int64)
    np.put_along_axis(chosen, np.where(result.unused, 241, result.positions + 1), 1, axis=1)
    chosen[:, -1] = 0
    edges = np.full((512, 74), 0)
    for b, row in enumerate(np.diff(chosen, axis=1) != 0):
        positions = np.flatnonzero(row)
        edges[b, : len(positions)] = positions
        edges[b, len(positions) :] = positions[-1]
    return edges


def test_one_draw_decides_for_a_whole_run() -> None:
    masking = Masking(VOCABULARY, RATE, 0.5, 0.0, selection(LAWS["spanbert"], RATE, VOCABULARY))
    body = stream()
    output, pick, labels = masking(body, MOST, Draw(0, 0, torch.arange(B)))
    masked = output.tokens.gather(1, pick) == 3
    is_adjacent = (pick.diff(dim=1) == 1) & (labels[:, 1:] != IGNORED) & (labels[:, :-1] != IGNORED)
    documents = body.documents
    assert documents is not None
    is_adjacent &= documents.gather(1, pick)[:, 1:] == documents.gather(1, pick)[:, :-1]
    assert is_adjacent.sum() > 100
    assert (masked[:, 1:] == masked[:, :-1])[is_adjacent].all()


def test_a_tokenizer_without_word_beginnings_is_refused() -> None:
    with raises_problem(SpecError, "missing-words", "tokenizer"):
        selection(LAWS["words"], 0.15, VOCABULARY._replace(word_starts=None))
