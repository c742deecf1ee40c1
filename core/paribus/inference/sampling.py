"""From scores to a token: what is made unlikely, what is cut off, and what is drawn.

Which tokens each sequence has had, and what that makes of its scores.
"""

from __future__ import annotations

from typing import Final, final

import torch
from torch import Tensor

from paribus.inference.decoder import Reader
from paribus.inference.generation_config import GenerationConfig
from paribus.parts.draw import Draw

WRITING: Final = -2  # the epoch that draws of written tokens are keyed by: no epoch of training has it


def discouraged(scores: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """(N, V), (N, V) bool: what was there already is divided by the penalty: "CTRL" (Keskar et al. 2019), section 4.1.

    A score below 0 is multiplied by it: to divide that would encourage it.
    """
    return torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def cut(scores: Tensor, manner: GenerationConfig) -> Tensor:
    """(N, V) -> (N, V): the same, and -inf where nothing may be drawn; each cut sees what the one before it left."""
    scores = scores / manner.temperature
    if manner.top_k is not None and manner.top_k < scores.shape[-1]:
        least = scores.topk(manner.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if manner.top_p is not None and manner.top_p < 1:
        scores = scores.masked_fill(~_nucleus(scores, manner.top_p), -torch.inf)
    if manner.min_p is not None:
        probable = scores.softmax(-1)
        scores = scores.masked_fill(probable < manner.min_p * probable.amax(-1, keepdim=True), -torch.inf)
    return scores


def _nucleus(scores: Tensor, share: float) -> Tensor:
    """The fewest tokens that are as probable as `share` together: "The Curious Case of Neural Text Degeneration"
    (Holtzman et al. 2020)."""
    ranked, at = scores.sort(dim=-1, descending=True, stable=True)
    probable = ranked.softmax(-1)
    before = probable.cumsum(-1) - probable  # what those that are more probable come to
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, at, before < share)


def sample_tokens(scores: Tensor, manner: GenerationConfig, rows: Tensor, step: int) -> Tensor:
    """(N, V), (N,) -> (N,): a token for each, drawn as often as it is probable.

    What is drawn is keyed by (seed, row, step) and by nothing else: so it does not matter what else is in the batch.
    """
    probable = cut(scores.double(), manner).softmax(-1).cpu()
    upto = probable.cumsum(-1)
    at = Draw(manner.seed, WRITING, rows.cpu()).uniform(f"token {step}", 1).double() * upto[:, -1:]
    found = torch.searchsorted(upto, at, right=True).squeeze(-1)
    last = (probable > 0).long().mul(torch.arange(probable.shape[-1])).amax(-1)  # where rounding would go past it
    return torch.minimum(found, last).to(scores.device)


@final
class RepetitionPenalty:
    """A reader's sequences, prompts included, where what was there already is discouraged; else nothing at all."""

    def __init__(self, reader: Reader, manner: GenerationConfig, scores: Tensor) -> None:
        """`scores` (B, V) are those that follow the prompts."""
        self.penalty = manner.repetition_penalty
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
