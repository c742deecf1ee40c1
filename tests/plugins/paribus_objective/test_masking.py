"""Mask statistics: rates within 4 standard errors, uniformity by chi-square."""

from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from paribus import IGNORED, PADDING, Draw, Stream, Vocabulary
from paribus_objective.masking import Masking, smallest

SPECIALS = {"pad": 0, "cls": 1, "sep": 50, "mask": 3, "eos": 99}
VOCABULARY = Vocabulary(100, SPECIALS, (97, 98))
WORDS = 100 - 7
B, T, EPOCHS, RATE = 128, 300, 7, 0.15
MOST = 45


def stream(start: int = 0, count: int = B) -> Stream:
    """Random ids between cls and eos, a third of the examples padded."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 100, (B, T), generator=generator)
    tokens[:, 0], tokens[:, -1] = 1, 99
    documents = torch.zeros_like(tokens)
    documents[::3, 200:] = PADDING
    special = torch.zeros_like(tokens, dtype=torch.bool)
    special[:, 10] = True
    rows = slice(start, start + count)
    return Stream(tokens[rows], documents=documents[rows], special=special[rows])


def eligible(body: Stream) -> Tensor:
    assert body.documents is not None
    assert body.special is not None
    reserved = torch.tensor(sorted(VOCABULARY.reserved))
    return ~torch.isin(body.tokens, reserved) & (body.documents >= 0) & ~body.special


def masked(epoch: int, index: Tensor, body: Stream) -> tuple[Tensor, Tensor, Tensor]:
    """Masked tokens, labels scattered to their positions, and the mask of picked tokens."""
    output, pick, labels = Masking(VOCABULARY, RATE, 0.8, 0.1)(
        body, min(MOST, body.tokens.shape[1]), Draw(0, epoch, index)
    )
    spread = torch.full_like(body.tokens, IGNORED).scatter(1, pick, labels)
    return output.tokens, spread, spread != IGNORED


@cache
def many_epochs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Original and masked tokens, picked and eligible positions, over several epochs."""
    batches = [masked(epoch, torch.arange(B), stream()) for epoch in range(EPOCHS)]
    inputs, picked = torch.cat([batch[0] for batch in batches]), torch.cat([batch[2] for batch in batches])
    return stream().tokens.repeat(EPOCHS, 1), inputs, picked, eligible(stream()).repeat(EPOCHS, 1)


def test_the_rate_is_exact_in_expectation() -> None:
    _, _, picked, allowed = many_epochs()
    assert allowed.sum() > 200_000
    expected = RATE * allowed.sum(1).double()
    error = (expected % 1 * (1 - expected % 1)).sum().sqrt()
    assert abs(picked.sum() - expected.sum()) < 4 * error
    assert ((picked.sum(1) - expected).abs() < 1).all()


def test_labels_are_the_masked_tokens_and_others_are_unchanged() -> None:
    body = stream()
    inputs, labels, picked = masked(0, torch.arange(B), body)
    assert torch.equal(labels[picked], body.tokens[picked])
    assert torch.equal(inputs[~picked], body.tokens[~picked])


def test_of_the_picked_tokens_80_percent_are_masked_10_random_and_10_kept() -> None:
    tokens, inputs, picked, _ = many_epochs()
    masked_count = (inputs[picked] == SPECIALS["mask"]).sum()
    unchanged = (inputs[picked] == tokens[picked]).sum()
    count = picked.sum()
    same = 0.1 / WORDS  # a random token may be the token itself
    expected = np.array([0.8, 0.1 - same, 0.1 + same]) * int(count)
    assert (
        stats.chisquare([int(masked_count), int(count - masked_count - unchanged), int(unchanged)], expected).pvalue
        > 1e-4
    )


def test_every_eligible_position_is_equally_likely() -> None:
    _, _, picked, allowed = many_epochs()
    share = RATE * allowed.sum(0).double()
    is_eligible = share > 0
    statistic = ((picked.sum(0) - share)[is_eligible] ** 2 / (share[is_eligible] * (1 - RATE))).sum()
    assert stats.chi2.sf(float(statistic), int(is_eligible.sum())) > 1e-4


def test_random_tokens_are_uniform_over_the_vocabulary() -> None:
    tokens, inputs, picked, _ = many_epochs()
    swapped = inputs[picked & (inputs != SPECIALS["mask"]) & (inputs != tokens)]
    words = sorted(set(range(100)) - VOCABULARY.reserved)
    counts = torch.bincount(swapped, minlength=100)[words]
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4


def test_special_tokens_are_never_picked_or_drawn_nor_padding_picked() -> None:
    tokens, inputs, picked, allowed = many_epochs()
    assert not (picked & ~allowed).any()
    fresh = inputs[picked & (inputs != tokens)]
    assert set(fresh.tolist()) & VOCABULARY.reserved == {SPECIALS["mask"]}


def test_masks_are_independent_in_every_epoch() -> None:
    _, _, picked, allowed = many_epochs()
    first_epoch, second_epoch = picked[:B], picked[B : 2 * B]
    overlap = (first_epoch & second_epoch).sum() / allowed[:B].sum()
    assert overlap.item() == pytest.approx(RATE**2, abs=4 * RATE / allowed[:B].sum().item() ** 0.5)


def test_more_padding_does_not_change_the_mask() -> None:
    narrow = Stream(stream().tokens[:, :200], documents=torch.zeros(B, 200, dtype=torch.int64))
    wide = Stream(stream().tokens, documents=torch.zeros(B, T, dtype=torch.int64))
    assert wide.documents is not None
    wide.documents[:, 200:] = PADDING
    for short, long in zip(masked(0, torch.arange(B), narrow), masked(0, torch.arange(B), wide), strict=True):
        assert torch.equal(short, long[:, :200])


def test_an_example_with_any_text_has_a_label() -> None:
    tokens = torch.full((50, 20), SPECIALS["pad"])
    tokens[:, 7] = 42
    _, labels, picked = masked(0, torch.arange(50), Stream(tokens))
    assert picked.sum() == 50
    assert (labels[:, 7] == 42).all()


def test_the_first_of_a_random_order_are_distinct_and_ineligible_ones_last() -> None:
    values = Draw(0, 0, torch.arange(9)).uniform("x", 12)
    excluded = (values * 1000).long().numpy() % 3 == 0
    for count in (0, 1, 5, 12):
        order = smallest(values, count, excluded)
        for b in range(9):
            by_hand = sorted(range(12), key=lambda t: (excluded[b, t], float(values[b, t]), t))
            assert order[b].tolist() == by_hand[:count]


def test_equal_draws_are_ordered_by_position() -> None:
    assert smallest(torch.tensor([[0.5, 0.25, 0.5, 0.25]]), 4).tolist() == [[1, 3, 0, 2]]
