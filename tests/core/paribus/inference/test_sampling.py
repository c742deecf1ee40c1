"""Truncation and sampling of next tokens, against plain loops, Transformers and the exact probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from paribus.inference.generation_config import GenerationConfig
from paribus.inference.generation_strategies import filter_scores, penalize, sample_tokens
from paribus.testing.simulated_device import NAME, simulated_device

Array = np.ndarray[Any, Any]
SCORES = torch.randn(50, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 2


def softmax(scores: Array) -> Array:
    exponents: Array = np.exp(scores - scores.max())
    shares: Array = exponents / exponents.sum()
    return shares


def reference(scores: Array, config: GenerationConfig) -> Array:
    """Return the probabilities of one row of scores after temperature, top-k, top-p and min-p, in plain loops."""
    scores = scores / config.temperature
    candidates = list(range(len(scores)))

    def renormalized() -> dict[int, float]:
        return dict(zip(candidates, softmax(scores[candidates]), strict=True))

    if config.top_k is not None:
        candidates = sorted(candidates, key=lambda token: -scores[token])[: config.top_k]
    if config.top_p is not None:
        total, nucleus = 0.0, []
        for token, share in sorted(renormalized().items(), key=lambda pair: -pair[1]):
            if total >= config.top_p:
                break
            nucleus.append(token)
            total += share
        candidates = nucleus
    if config.min_p is not None:
        shares = renormalized()
        candidates = [token for token in candidates if shares[token] >= config.min_p * max(shares.values())]
    probabilities = np.zeros(len(scores))
    for token, share in renormalized().items():
        probabilities[token] = share
    return probabilities


CONFIGS = [
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


@pytest.mark.parametrize("options", CONFIGS, ids=str)
def test_truncated_probabilities_equal_the_reference(options: dict[str, Any]) -> None:
    config = GenerationConfig(**{"temperature": 1.0, **options})
    actual = filter_scores(SCORES, config).softmax(-1).numpy()
    expected = np.stack([reference(row, config) for row in SCORES.numpy()])
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", CONFIGS[1:], ids=str)
def test_truncation_equals_that_of_transformers(options: dict[str, Any]) -> None:
    from transformers.generation import logits_process as hf_processors

    config = GenerationConfig(**{"temperature": 1.0, **options})
    scores = hf_processors.TemperatureLogitsWarper(config.temperature)(torch.empty(0), SCORES)
    if config.top_k is not None:
        scores = hf_processors.TopKLogitsWarper(config.top_k)(torch.empty(0), scores)
    if config.top_p is not None:
        scores = hf_processors.TopPLogitsWarper(config.top_p)(torch.empty(0), scores)
    if config.min_p is not None:
        scores = hf_processors.MinPLogitsWarper(config.min_p)(torch.empty(0), scores)
    torch.testing.assert_close(filter_scores(SCORES, config).softmax(-1), scores.softmax(-1), rtol=0, atol=1e-12)


def test_the_repetition_penalty_lowers_scores_of_either_sign() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    ids = torch.randint(12, (50, 5), generator=torch.Generator().manual_seed(5))
    is_present = torch.zeros_like(SCORES, dtype=torch.bool).scatter(1, ids, value=True)
    actual = penalize(SCORES, is_present, 1.2)
    expected = SCORES.tolist()
    for row, present_ids in zip(expected, ids.tolist(), strict=True):
        for token in set(present_ids):
            row[token] = row[token] * 1.2 if row[token] < 0 else row[token] / 1.2
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)
    torch.testing.assert_close(actual, RepetitionPenaltyLogitsProcessor(1.2)(ids, SCORES.clone()), rtol=0, atol=1e-15)
    assert (actual <= SCORES).all()


def tokens_drawn(scores: Tensor, config: GenerationConfig, count: int, step: int = 0) -> Tensor:
    """Sample `count` tokens from one row of scores."""
    return sample_tokens(scores.expand(count, -1), config, torch.arange(count), step)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}], ids=str)
def test_tokens_are_sampled_with_their_probabilities(options: dict[str, Any]) -> None:
    config, count = GenerationConfig(**{"temperature": 1.0, "seed": 7, **options}), 20_000
    expected = reference(SCORES[1].numpy(), config)
    frequencies = np.bincount(tokens_drawn(SCORES[1], config, count).numpy(), minlength=12)
    assert (frequencies[expected == 0] == 0).all()
    assert chisquare(frequencies[expected > 0], expected[expected > 0] * count).pvalue > 1e-4
    steps = [int(tokens_drawn(SCORES[1], config, 1, step)) for step in range(1_000)]
    counts = np.bincount(steps, minlength=12)
    assert chisquare(counts[expected > 0], expected[expected > 0] * len(steps)).pvalue > 1e-4


def test_a_sampled_token_does_not_depend_on_the_other_rows() -> None:
    config = GenerationConfig(temperature=1.0, seed=3)
    rows = torch.tensor([8, 2, 30])
    together = sample_tokens(SCORES[rows], config, rows, 4)
    alone = [int(sample_tokens(SCORES[row : row + 1], config, torch.tensor([row]), 4)) for row in rows.tolist()]
    assert together.tolist() == alone
    everything = sample_tokens(SCORES, config, torch.arange(50), 4)
    assert everything[rows].tolist() == alone
    assert not torch.equal(
        everything, sample_tokens(SCORES, GenerationConfig(temperature=1.0, seed=4), torch.arange(50), 4)
    )
    assert not torch.equal(everything, sample_tokens(SCORES, config, torch.arange(50), 5))


def test_an_impossible_token_is_never_sampled() -> None:
    scores = torch.full((1, 6), -torch.inf)
    scores[0, 2] = 0.0
    assert (tokens_drawn(scores[0], GenerationConfig(temperature=1.0), 500) == 2).all()
    few = torch.tensor([0.0, 0.0, -90.0, -90.0, -800.0])
    assert set(tokens_drawn(few, GenerationConfig(temperature=1.0), 500).tolist()) <= {0, 1}


@pytest.mark.device
def test_probabilities_are_summed_on_the_cpu_since_cuda_has_no_deterministic_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores, devices, cumsum = torch.randn(3, 9), set[str](), Tensor.cumsum

    def recorded(tensor: Tensor, dim: int) -> Tensor:
        devices.add(tensor.device.type)
        return cumsum(tensor, dim)

    config = GenerationConfig(temperature=1.0, top_p=0.6)
    expected = filter_scores(scores, config)
    monkeypatch.setattr(Tensor, "cumsum", recorded)
    with simulated_device():
        filtered = filter_scores(scores.to(NAME), config)
        assert filtered.device.type == NAME
        assert torch.equal(filtered.cpu(), expected)
    assert devices == {"cpu"}
