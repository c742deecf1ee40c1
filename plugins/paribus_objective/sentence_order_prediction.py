"""Tell whether two segments of a text are in their order, or swapped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from paribus import (
    Cost,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    Shape,
    Tokens,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
)
from paribus_objective import scoring
from paribus_objective.pooling import Pooled
from paribus_objective.segments import MARKS, Array, Index, Layout, Span, truncated

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class SentenceOrderPrediction(Objective):
    """Label 0: A comes before B in their document; 1: they are swapped, at even odds: "ALBERT" (Lan et al. 2020).

    An example is a chunk of consecutive sentences, split between two of them. (B, T, D) -> (B, 2), from the first row.
    """

    traits: ClassVar[Traits] = {
        "forms": "segments",
        "corrupts": False,
        "sight": "both",
        "parts": [],
        "segments": True,
        "needs": ["cls", "sep", "sentences"],
        "unembeds": False,
    }

    def __init__(self, shape: Shape, vocabulary: Vocabulary, norm: Norms) -> None:
        super().__init__()
        self.layout = Layout(shape, vocabulary, "sop")
        self.index = Index("sop", documents=1, rows=shape.length)
        self.head = Pooled(shape.width, 2)

    def example_count(self, tokens: Tokens, length: int) -> int:
        return len(self.index(tokens, length).first)

    def example_lengths(self, tokens: Tokens, length: int) -> Array:
        return self.index(tokens, length).lengths(length)

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        a, b = truncated(*self.index(tokens, length).split(draw), length - MARKS, draw)
        swapped = (draw.uniform("swap", 1)[:, 0] < 0.5).numpy()
        a, b = _chosen(swapped, b, a), _chosen(swapped, a, b)
        return TrainingExamples(
            {"body": self.layout(tokens, a, b, length)}, {"labels": torch.from_numpy(swapped).long()}
        )

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        scores: Tensor = self.head(hidden)
        return scores

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"])}

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float:
        """Of two labels at even odds."""
        return math.log(2)

    def cost(self, load: Load) -> Cost:
        return self.head.cost(load)

    def head_positions(self, length: int) -> int:
        return 1

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": scoring.accuracy(2)}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        scoring.update(metrics["accuracy"], self._logits(run), run.targets["labels"])

    def _logits(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(run.hidden("body")[:, 0], run.unembed))


def _chosen(which: Array, yes: Span, no: Span) -> Span:
    return Span(np.where(which, yes.start, no.start), np.where(which, yes.length, no.length))
