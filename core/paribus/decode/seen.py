"""Which tokens each sequence has had, and what that makes of its scores."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from paribus.decode.choosing import discouraged
from paribus.decode.manner import Manner
from paribus.decode.reading import Reader


@final
class Seen:
    """A reader's sequences, prompts included, where what was there already is discouraged; else nothing at all."""

    def __init__(self, reader: Reader, manner: Manner, scores: Tensor) -> None:
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
