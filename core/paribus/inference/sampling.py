"""Sampling of tokens from scores: repetition penalty, top-k, top-p and min-p."""

from __future__ import annotations

from typing import Final, final

import torch
from torch import Tensor

from paribus.inference.decoder import Reader
from paribus.inference.generation_config import GenerationConfig
from paribus.parts.draw import Draw

WRITING: Final = -2  # epoch in the keys of these draws, which no epoch of training has


def discouraged(scores: Tensor, used: Tensor, penalty: float) -> Tensor:
    """Divide the scores (N, V) of used tokens, (N, V) bool, by the penalty (Keskar et al. 2019, section 4.1).

    A score below 0 is multiplied by it: to divide that would encourage it.
    """
    return torch.where(used, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def cut(scores: Tensor, config: GenerationConfig) -> Tensor:
    """Return the scores (N, V), with -inf for tokens that top-k, top-p and min-p exclude, in this order."""
    scores = scores / config.temperature
    if config.top_k is not None and config.top_k < scores.shape[-1]:
        minimum = scores.topk(config.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < minimum, -torch.inf)
    if config.top_p is not None and config.top_p < 1:
        scores = scores.masked_fill(~_nucleus(scores, config.top_p), -torch.inf)
    if config.min_p is not None:
        probable = scores.softmax(-1)
        scores = scores.masked_fill(probable < config.min_p * probable.amax(-1, keepdim=True), -torch.inf)
    return scores


def _nucleus(scores: Tensor, share: float) -> Tensor:
    """Return a mask of the fewest tokens with the total probability `share` (Holtzman et al. 2020)."""
    ranked, order = scores.sort(dim=-1, descending=True, stable=True)
    probable = ranked.softmax(-1)
    cumulative = probable.cumsum(-1) - probable  # total probability of the more probable tokens
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, cumulative < share)


def sample_tokens(scores: Tensor, config: GenerationConfig, rows: Tensor, step: int) -> Tensor:
    """Sample one token from each of the scores (N, V).

    Draws are keyed by (seed, row, step), so that the rest of the batch does not matter.
    """
    probable = cut(scores.double(), config).softmax(-1).cpu()
    upto = probable.cumsum(-1)
    index = Draw(config.seed, WRITING, rows.cpu()).uniform(f"token {step}", 1).double() * upto[:, -1:]
    tokens = torch.searchsorted(upto, index, right=True).squeeze(-1)
    lower = (probable > 0).long().mul(torch.arange(probable.shape[-1])).amax(-1)  # against rounding
    return torch.minimum(tokens, lower).to(scores.device)


@final
class RepetitionPenalty:
    """Repetition penalty for the tokens of each sequence, with its prompt."""

    def __init__(self, reader: Reader, config: GenerationConfig, scores: Tensor) -> None:
        """`scores` (B, V) are those of the first new tokens."""
        self.penalty = config.repetition_penalty
        self.table: Tensor | None = None
        if self.penalty != 1:
            self.table = torch.zeros_like(scores, dtype=torch.bool)
            for row, prompt in enumerate(reader.prompts):
                self.table[row, list(prompt.body)] = True

    def discouraged(self, scores: Tensor) -> Tensor:
        """(N, V) -> (N, V)."""
        return scores if self.table is None else discouraged(scores, self.table, self.penalty)

    def take(self, index: Tensor) -> None:
        self.table = None if self.table is None else self.table[index]

    def add(self, tokens: Tensor) -> None:
        self.table = None if self.table is None else self.table.scatter(1, tokens.unsqueeze(1), value=True)
