"""The head of objectives that judge a sequence as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor, nn

from paribus import Cost, Load, Role


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
        return Cost(flops=2 * load.picks * (self.dense.weight.numel() + self.scores.weight.numel()))
