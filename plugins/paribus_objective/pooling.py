"""The heads of objectives that judge a sequence as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn

from paribus import Cost, ForwardPass, Load, Role

Pool = Literal["first", "mean", "last"]


@final
class Pooled(nn.Module):
    """A dense layer with tanh on the first row, then a score for each class: "BERT" (Devlin et al. 2019)."""

    roles: ClassVar[Mapping[str, Role]] = {"dense.weight": "head", "scores.weight": "head"}

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.scores = nn.Linear(width, classes)

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, D) -> (…, C)."""
        scores: Tensor = self.scores(self.dense(hidden).tanh())
        return scores

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * (self.dense.weight.numel() + self.scores.weight.numel()))


@final
class Plain(nn.Module):
    """A score for each class, and nothing before it."""

    roles: ClassVar[Mapping[str, Role]] = {"scores.weight": "head"}

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.scores = nn.Linear(width, classes)

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, D) -> (…, C)."""
        scores: Tensor = self.scores(hidden)
        return scores

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * self.scores.weight.numel())


def pooled(run: ForwardPass, pool: Pool) -> Tensor:
    """(B, D): the row that stands for each sequence. The last one is where the targets say that it is `last`."""
    hidden = run.hidden("body")
    if pool == "first":
        return hidden[:, 0]
    if pool == "last":
        return hidden[torch.arange(len(hidden), device=hidden.device), run.targets["last"]]
    documents = run.streams["body"].documents
    assert documents is not None, "texts of one batch differ in length"
    there = (documents >= 0).unsqueeze(-1).to(hidden.dtype)
    return (hidden * there).sum(1) / there.sum(1)
