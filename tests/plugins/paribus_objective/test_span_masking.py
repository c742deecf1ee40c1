"""Span masking: lengths, positions and boundaries of spans."""

from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from paribus import IGNORED, PADDING, Draw, Stream, Vocabulary
from paribus_objective.masking import Masking
from paribus_objective.span_masking import Spans, SpanSelection, boundaries, runs
from paribus_objective.whole_words import selection

SPECIALS = {"pad": 0, "cls": 1, "sep": 50, "mask": 3, "eos": 99}
VOCABULARY = Vocabulary(100, SPECIALS, (97, 98))
WORDS = 100 - 7
B, T, EPOCHS, RATE = 256, 160, 8, 0.15
MOST = 24
GEOMETRIC = Spans(max_length=10, stop_probability=0.2, joint_replacement=True)


def masking(spans: Spans = GEOMETRIC, rate: float = RATE) -> Masking:
    return Masking(VOCABULARY, rate, 0.8, 0.1, selection(spans, rate, VOCABULARY))


def stream(start: int = 0, count: int = B) -> Stream:
    """Random words between cls and eos, with a sep between; a third of the examples padded, one in four packed."""
    words = torch.tensor(sorted(set(range(100)) - VOCABULARY.reserved))
    tokens = words[torch.randint(0, WORDS, (B, T), generator=torch.Generator().manual_seed(0))]
    tokens[:, 0], tokens[:, 70], tokens[:, -1] = 1, 50, 99
    documents = torch.zeros_like(tokens)
    documents[::4, 110:] = 1
    documents[::3, 140:] = PADDING
    rows = slice(start, start + count)
    return Stream(tokens[rows], documents=documents[rows])


def plain(width: int = T) -> Stream:
    """A stream of words alone, so that spans are truncated only at the ends of rows."""
    generator = torch.Generator().manual_seed(1)
    words = torch.tensor(sorted(set(range(100)) - VOCABULARY.reserved))
    return Stream(words[torch.randint(0, WORDS, (B, width), generator=generator)])


def eligible(body: Stream) -> Tensor:
    mask = ~torch.isin(body.tokens, torch.tensor(sorted(VOCABULARY.reserved)))
    return mask if body.documents is None else mask & (body.documents >= 0)


def masked(epoch: int, index: Tensor, body: Stream, mask_function: Masking | None = None) -> tuple[Tensor, Tensor]:
    """Masked tokens, and the mask of predicted tokens."""
    output, pick, labels = (mask_function or masking())(body, min(MOST, body.tokens.shape[1]), Draw(0, epoch, index))
    return output.tokens, torch.zeros_like(body.tokens, dtype=torch.bool).scatter(1, pick, labels != IGNORED)


@cache
def many_epochs(packed: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Original and masked tokens, picked and eligible positions, over several epochs."""
    body = stream() if packed else plain()
    batches = [masked(epoch, torch.arange(B), body) for epoch in range(EPOCHS)]
    inputs, picked = torch.cat([batch[0] for batch in batches]), torch.cat([batch[1] for batch in batches])
    return body.tokens.repeat(EPOCHS, 1), inputs, picked, eligible(body).repeat(EPOCHS, 1)


def spans_of(picked: Tensor) -> list[tuple[int, int, int]]:
    """Row, first and last position of every run of picked tokens."""
    edges = torch.diff(torch.nn.functional.pad(picked.int(), (1, 1)), dim=1)
    starts, ends = (edges == 1).nonzero().tolist(), (edges == -1).nonzero().tolist()
    return [(row, start, end - 1) for (row, start), (_, end) in zip(starts, ends, strict=True)]


def test_spanbert_lengths_are_geometric_up_to_10_with_mean_3_8() -> None:
    chances = GEOMETRIC.length_probabilities()
    np.testing.assert_allclose(chances, 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10))
    assert (chances * np.arange(1, 11)).sum() == pytest.approx(3.8, abs=0.01)


def test_albert_lengths_have_probability_one_over_length() -> None:
    np.testing.assert_allclose(Spans(max_length=3).length_probabilities(), np.array([6, 3, 2]) / 11)


@pytest.mark.parametrize("spans", [GEOMETRIC, Spans(max_length=3), Spans(max_length=4, stop_probability=0.5)])
def test_drawn_lengths_follow_the_distribution(spans: Spans) -> None:
    lengths = SpanSelection(spans, RATE).lengths(20, Draw(0, 0, torch.arange(2000)))
    counts = np.bincount(lengths.ravel(), minlength=spans.max_length + 1)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:], spans.length_probabilities() * lengths.size).pvalue > 1e-4


def test_the_rate_is_exact_in_expectation() -> None:
    _, _, picked, allowed = many_epochs(packed=True)
    assert allowed.sum() > 200_000
    expected = RATE * allowed.sum(1).double()
    error = (expected % 1 * (1 - expected % 1)).sum().sqrt()
    assert abs(picked.sum() - expected.sum()) < 4 * error
    assert ((picked.sum(1) - expected).abs() < 1).all()


def test_every_position_is_equally_likely() -> None:
    for packed in (False, True):
        _, _, picked, allowed = many_epochs(packed)
        share = RATE * allowed.sum(0).double()
        is_eligible = share > 0
        deviation = (picked.sum(0) - share)[is_eligible] / (share[is_eligible] * (1 - RATE)).sqrt()
        assert float(deviation.abs().max()) < 4.5  # positions of one span are dependent, so no chi-square
        assert abs(float(deviation.square().mean()) - 1) < 0.5


@pytest.mark.thorough
def test_a_span_has_its_drawn_length_unless_truncated() -> None:
    _, _, picked, _ = many_epochs(packed=False)
    lengths = [end - start + 1 for _, start, end in spans_of(picked) if start > 0 and end < T - 1]
    assert max(lengths) == 10
    assert 3.0 < float(np.mean(lengths)) < 3.8  # the last span of each example is truncated


def test_most_masked_tokens_are_adjacent() -> None:
    _, _, picked, _ = many_epochs(packed=False)
    is_adjacent = picked & (torch.nn.functional.pad(picked, (1, -1)) | torch.nn.functional.pad(picked, (-1, 1)))
    assert is_adjacent.sum() / picked.sum() > 0.9


@pytest.mark.thorough
def test_one_draw_decides_for_a_whole_span() -> None:
    tokens, inputs, picked, _ = many_epochs(packed=True)
    fates = {"mask": 0, "kept": 0, "random": 0}
    documents = stream().documents
    assert documents is not None
    documents = documents.repeat(EPOCHS, 1)
    for row, start, end in spans_of(picked):
        if documents[row, start] != documents[row, end] or end == start:
            continue
        span_inputs, originals = inputs[row, start : end + 1], tokens[row, start : end + 1]
        masks = span_inputs == SPECIALS["mask"]
        assert masks.all() or not masks.any()
        fates["mask" if masks.all() else "kept" if torch.equal(span_inputs, originals) else "random"] += 1
    expected = np.array([0.8, 0.1, 0.1]) * sum(fates.values())
    assert stats.chisquare([fates["mask"], fates["kept"], fates["random"]], expected).pvalue > 1e-4


def test_with_a_draw_per_token_spans_are_mixed() -> None:
    tokens, objective = plain().tokens, masking(Spans(max_length=10, stop_probability=0.2))
    shown, picked = masked(0, torch.arange(B), plain(), objective)
    masks = shown == SPECIALS["mask"]
    mixed = sum(bool(masks[r, a : b + 1].any() and not masks[r, a : b + 1].all()) for r, a, b in spans_of(picked))
    assert mixed > 100
    assert masks[picked].double().mean().item() == pytest.approx(0.8, abs=0.03)
    assert torch.equal(shown[~picked], tokens[~picked])


def test_special_tokens_are_never_picked_or_drawn_nor_padding_picked() -> None:
    tokens, shown, picked, allowed = many_epochs(packed=True)
    assert not (picked & ~allowed).any()
    fresh = shown[picked & (shown != tokens)]
    assert set(fresh.tolist()) & VOCABULARY.reserved == {SPECIALS["mask"]}
    assert torch.equal(shown[~picked], tokens[~picked])


def test_an_example_with_any_text_has_a_label() -> None:
    for count in (1, 2, 3):
        tokens = torch.full((50, 20), SPECIALS["pad"])
        tokens[:, 7 : 7 + count] = 42
        _, picked = masked(0, torch.arange(50), Stream(tokens))
        assert (picked.sum(1) == 1).all()
        assert (picked.any(0).nonzero().flatten().tolist()) == list(range(7, 7 + count))


def test_spans_are_not_adjacent_even_at_half_the_text() -> None:
    objective = masking(Spans(max_length=2), rate=0.5)
    _, pick, labels = objective(plain(15), 8, Draw(0, 0, torch.arange(B)))
    assert torch.isin((labels != IGNORED).sum(1), torch.tensor([7])).all()  # half of 15 would leave no gaps for 8
    chosen = torch.zeros(B, 15, dtype=torch.bool).scatter(1, pick, labels != IGNORED)
    assert max(last - first + 1 for _, first, last in spans_of(chosen)) == 2


def test_a_rate_without_room_between_spans_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`rate` ≤ 0.5 .* got 0.6"):
        selection(GEOMETRIC, 0.6, VOCABULARY)
    selection(Spans(), 0.6, VOCABULARY)  # single tokens may be adjacent


def test_spans_depend_on_the_epoch_and_not_on_the_batch() -> None:
    first_epoch, second_epoch = (masked(epoch, torch.arange(B), stream())[1] for epoch in (0, 1))
    allowed = eligible(stream()).sum().item()
    both = (first_epoch & second_epoch).sum().item() / allowed
    assert both == pytest.approx(RATE**2, abs=12 * RATE / allowed**0.5)
    alone = masked(0, torch.arange(40, 50), stream(40, 10))[1]
    assert torch.equal(alone, first_epoch[40:50])


def test_more_padding_does_not_change_the_mask() -> None:
    narrow, wide = Stream(plain().tokens[:, :100]), plain()
    documents = torch.zeros(B, T, dtype=torch.int64)
    documents[:, 100:] = PADDING
    short = masked(0, torch.arange(B), narrow)
    long = masked(0, torch.arange(B), Stream(wide.tokens, documents=documents))
    assert all(
        torch.equal(short_values, long_values[:, :100]) for short_values, long_values in zip(short, long, strict=True)
    )


@pytest.mark.parametrize("documents", [True, False])
def test_boundaries_are_the_tokens_around_a_run_of_one_document(documents: bool) -> None:
    body = stream() if documents else plain()
    pick, unused, _ = masking().select(masking().non_text(body), body, RATE, MOST, Draw(0, 0, torch.arange(B)))
    result = boundaries(pick, unused, body)
    numbers = body.documents.tolist() if body.documents is not None else [[0] * T] * B
    missing = 0
    for b in range(B):
        masked_positions = {int(row) for row, is_unused in zip(pick[b], unused[b], strict=True) if not is_unused}
        for n in range(MOST):
            if unused[b, n]:
                assert result.missing[b, n]
                continue
            row = start = end = int(pick[b, n])
            while start - 1 in masked_positions and numbers[b][start - 1] == numbers[b][row]:
                start -= 1
            while end + 1 in masked_positions and numbers[b][end + 1] == numbers[b][row]:
                end += 1
            has_neighbours = start > 0 and end < T - 1
            has_neighbours = has_neighbours and numbers[b][start - 1] == numbers[b][row] == numbers[b][end + 1]
            missing += not has_neighbours
            assert result.missing[b, n] == (not has_neighbours)
            expected = (start - 1, end + 1, row - start) if has_neighbours else (0, 0, 0)
            assert (result.left[b, n], result.right[b, n], result.offset[b, n]) == expected
    assert 0 < missing < pick.size / 10


def test_an_empty_mask_has_no_runs() -> None:
    body = Stream(torch.full((2, 5), SPECIALS["pad"]))
    pick, unused, groups = masking().select(masking().non_text(body), body, RATE, 2, Draw(0, 0, torch.arange(2)))
    assert unused.all()
    assert groups is not None
    assert (groups >= 0).all()
    assert (runs(pick, unused, body).number >= 0).all()
    assert boundaries(pick, unused, body).missing.all()
