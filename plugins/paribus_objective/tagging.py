"""Tell of each word what it is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from paribus import (
    IGNORED,
    Cost,
    DataError,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    Problem,
    Range,
    Role,
    Shape,
    Tokens,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
)
from paribus_objective import labelled, scoring
from paribus_objective.segments import MARKS, Layout, Span
from paribus_objective.windows import Array, Once, Words, runs

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class Tagging(Objective):
    """A label for each word, scored at the row of its first piece: "BERT" (Devlin et al. 2019), 5.3.

    Rows of other pieces, of marks and of padding have none. A text longer than there are rows is cut between words into
    several examples, so that each word is in one. (B, T, D) -> (B, T, C).
    """

    traits: ClassVar[Traits] = {
        "forms": "texts",
        "corrupts": False,
        "sight": "any",
        "parts": [],
        "segments": True,
        "needs": ["cls", "sep", "documents", "tags"],
        "told": {"classes": "least"},
        "unembeds": False,
    }
    roles: ClassVar[Mapping[str, Role]] = {"head.weight": "head"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        classes: Annotated[int, "tags that are scored, at least as many as the corpus has", Range(2, 65536)] = 2,
        smoothing: Annotated[float, "share of a label that is spread over all tags", Range(0, below=1)] = 0.0,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.smoothing = smoothing
        self.layout = Layout(shape, vocabulary, "tag")
        self.most = shape.length - MARKS + 1
        self.runs = Once(partial(runs, most=self.most))
        self.head = nn.Linear(shape.width, classes)

    def example_count(self, tokens: Tokens, length: int) -> int:
        labels = labelled.told(tokens)
        counts, words = np.diff(labels.documents), np.diff(np.asarray(tokens.documents))
        wrong = np.flatnonzero(counts != words)
        if wrong.size:
            what = f"document {wrong[0]:,} has {counts[wrong[0]]} tags and {words[wrong[0]]} words"
            raise DataError(Problem(code="labels", path="corpus", message=what, valid="a tag for each word"))
        labelled.within(labels.values[labels.values != IGNORED], self.classes, "tag")
        return len(self.runs(tokens).first)

    def example_lengths(self, tokens: Tokens, length: int) -> Array:
        found = self.runs(tokens)
        rows: Array = np.minimum(self._span(tokens, found).length + MARKS - 1, length)
        return rows

    def skipped_documents(self, tokens: Tokens, length: int) -> Mapping[str, int]:
        found, bounds = self.runs(tokens), np.asarray(tokens.sentences)
        cut = bounds[found.last] - bounds[found.first] - self._span(tokens, found).length
        return {"tokens of words that are longer than their rows": int(cut.sum())}

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        found = Words(*(column[draw.index.numpy()] for column in self.runs(tokens)))
        span = self._span(tokens, found)
        return TrainingExamples(
            {"body": self.layout(tokens, span, None, length)},
            {"labels": torch.from_numpy(_at_first_pieces(tokens, found, span, length))},
        )

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        scores: Tensor = self.head(hidden)
        return scores

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        smoothing = self.smoothing if self.training else 0.0
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"], smoothing)}

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
        """With one added to each tag that is scored."""
        told = labelled.told(train).values.astype(np.int64)
        return scoring.prior(scoring.counted(told, self.classes), targets["labels"])

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * self.head.weight.numel())

    def head_positions(self, length: int) -> int:
        return length

    def metrics(self) -> Mapping[str, Metric]:
        return scoring.of_classes(self.classes)

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        for name in scoring.OF_CLASSES:
            scoring.update(metrics[name], self._logits(run), run.targets["labels"])

    def _span(self, tokens: Tokens, found: Words) -> Span:
        """A word longer than there are rows is cut, and keeps its label."""
        bounds = np.asarray(tokens.sentences)
        return Span(bounds[found.first], np.minimum(bounds[found.last] - bounds[found.first], self.most))

    def _logits(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(run.hidden("body"), run.unembed))


def _at_first_pieces(tokens: Tokens, found: Words, span: Span, length: int) -> Array:
    """(B, T) the label of each word in the row of its first piece, behind the mark."""
    told, counts = labelled.told(tokens), found.last - found.first
    row = np.repeat(np.arange(len(counts)), counts)
    word = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + found.first[row]
    document = found.document[row]
    values = told.values[told.documents[document] + word - np.asarray(tokens.documents)[document]]
    labels = np.full((len(counts), length), IGNORED, dtype=np.int64)
    labels[row, 1 + np.asarray(tokens.sentences)[word] - span.start[row]] = values.astype(np.int64)
    return labels
