"""What is cut off and what is drawn: against plain loops, against another library, and against the probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from paribus.inference.generation_config import GenerationConfig
from paribus.inference.sampling import cut, discouraged, sample_tokens

Array = np.ndarray[Any, Any]
SCORES = torch.randn(50, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 2


def softmax(scores: Array) -> Array:
    exponents: Array = np.exp(scores - scores.max())
    shares: Array = exponents / exponents.sum()
    return shares


def reference(scores: Array, manner: GenerationConfig) -> Array:
    """One row, as one would explain it: which tokens are left, one cut after the other, and how probable each is."""
    scores = scores / manner.temperature
    left = list(range(len(scores)))

    def among() -> dict[int, float]:
        return dict(zip(left, softmax(scores[left]), strict=True))

    if manner.top_k is not None:
        left = sorted(left, key=lambda token: -scores[token])[: manner.top_k]
    if manner.top_p is not None:
        total, kept = 0.0, []
        for token, share in sorted(among().items(), key=lambda pair: -pair[1]):
            if total >= manner.top_p:
                break
            kept.append(token)
            total += share
        left = kept
    if manner.min_p is not None:
        shares = among()
        left = [token for token in left if shares[token] >= manner.min_p * max(shares.values())]
    found = np.zeros(len(scores))
    for token, share in among().items():
        found[token] = share
    return found


MANNERS = [
    {},
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 4},
    {"top_k": 40},
    {"top_p": 0.05},
    {"top_p": 0.7},
    {"top_p": 1.0},
    {"min_p": 0.0},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"temperature": 1.7, "top_k": 6, "top_p": 0.8, "min_p": 0.15},
]


@pytest.mark.parametrize("said", MANNERS, ids=str)
def test_what_is_left_and_how_probable_it_is(said: dict[str, Any]) -> None:
    manner = GenerationConfig(**{"temperature": 1.0, **said})
    found = cut(SCORES, manner).softmax(-1).numpy()
    wanted = np.stack([reference(row, manner) for row in SCORES.numpy()])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("said", MANNERS[1:], ids=str)
def test_another_library_cuts_off_the_same(said: dict[str, Any]) -> None:
    from transformers.generation import logits_process as theirs

    manner = GenerationConfig(**{"temperature": 1.0, **said})
    scores = theirs.TemperatureLogitsWarper(manner.temperature)(torch.empty(0), SCORES)
    if manner.top_k is not None:
        scores = theirs.TopKLogitsWarper(manner.top_k)(torch.empty(0), scores)
    if manner.top_p is not None:
        scores = theirs.TopPLogitsWarper(manner.top_p)(torch.empty(0), scores)
    if manner.min_p is not None:
        scores = theirs.MinPLogitsWarper(manner.min_p)(torch.empty(0), scores)
    torch.testing.assert_close(cut(SCORES, manner).softmax(-1), scores.softmax(-1), rtol=0, atol=1e-12)


def test_what_was_there_is_discouraged_whatever_its_sign() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    ids = torch.randint(12, (50, 5), generator=torch.Generator().manual_seed(5))
    seen = torch.zeros_like(SCORES, dtype=torch.bool).scatter(1, ids, value=True)
    found = discouraged(SCORES, seen, 1.2)
    wanted = SCORES.tolist()
    for row, had in zip(wanted, ids.tolist(), strict=True):
        for token in set(had):
            row[token] = row[token] * 1.2 if row[token] < 0 else row[token] / 1.2
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-15)
    torch.testing.assert_close(found, RepetitionPenaltyLogitsProcessor(1.2)(ids, SCORES.clone()), rtol=0, atol=1e-15)
    assert (found <= SCORES).all()


def tokens_drawn(scores: Tensor, manner: GenerationConfig, count: int, step: int = 0) -> Tensor:
    """So many rows that are asked the same."""
    return sample_tokens(scores.expand(count, -1), manner, torch.arange(count), step)


@pytest.mark.parametrize("said", [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}], ids=str)
def test_tokens_are_drawn_as_often_as_they_are_probable(said: dict[str, Any]) -> None:
    manner, count = GenerationConfig(**{"temperature": 1.0, "seed": 7, **said}), 20_000
    wanted = reference(SCORES[1].numpy(), manner)
    found = np.bincount(tokens_drawn(SCORES[1], manner, count).numpy(), minlength=12)
    assert (found[wanted == 0] == 0).all()
    assert chisquare(found[wanted > 0], wanted[wanted > 0] * count).pvalue > 1e-4
    steps = [int(tokens_drawn(SCORES[1], manner, 1, step)) for step in range(1_000)]
    counts = np.bincount(steps, minlength=12)
    assert chisquare(counts[wanted > 0], wanted[wanted > 0] * len(steps)).pvalue > 1e-4


def test_a_row_draws_the_same_whatever_else_is_drawn_for() -> None:
    manner = GenerationConfig(temperature=1.0, seed=3)
    rows = torch.tensor([8, 2, 30])
    together = sample_tokens(SCORES[rows], manner, rows, 4)
    alone = [int(sample_tokens(SCORES[row : row + 1], manner, torch.tensor([row]), 4)) for row in rows.tolist()]
    assert together.tolist() == alone
    everything = sample_tokens(SCORES, manner, torch.arange(50), 4)
    assert everything[rows].tolist() == alone
    assert not torch.equal(
        everything, sample_tokens(SCORES, GenerationConfig(temperature=1.0, seed=4), torch.arange(50), 4)
    )
    assert not torch.equal(everything, sample_tokens(SCORES, manner, torch.arange(50), 5))


def test_nothing_is_drawn_that_cannot_be_even_where_sums_are_rounded() -> None:
    scores = torch.full((1, 6), -torch.inf)
    scores[0, 2] = 0.0
    assert (tokens_drawn(scores[0], GenerationConfig(temperature=1.0), 500) == 2).all()
    few = torch.tensor([0.0, 0.0, -90.0, -90.0, -800.0])
    assert set(tokens_drawn(few, GenerationConfig(temperature=1.0), 500).tolist()) <= {0, 1}
