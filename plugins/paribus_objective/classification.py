"""Tell of which class a text is, or a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, final

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
    Range,
    Shape,
    Tokens,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
    labels_of,
)
from paribus_objective import labelled, scoring
from paribus_objective.pooling import Plain, Pooled, pooled

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class Classification(Objective):
    """Scores classes by one row of `[cls] A [sep]`, or of `[cls] A [sep] B [sep]` where the corpus has pairs: "BERT"
    (Devlin et al. 2019).

    The row is the first, the mean of all, or the last; behind BERT's pooler, a dense layer with tanh, unless that is
    left out. What is longer than there are rows is cut at its end, of a pair the longer one first. (B, T, D) -> (B, C).
    """

    traits: ClassVar[Traits] = {
        "forms": "texts",
        "corrupts": False,
        "sight": "both",
        "parts": [],
        "segments": True,
        "needs": ["cls", "sep", "documents", "labels"],
        "told": {"classes": "least"},
        "unembeds": False,
    }

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        classes: Annotated[int, "classes that are scored, at least as many as the corpus has", Range(2, 65536)] = 2,
        pool: Annotated[Literal["first", "mean", "last"], "the row that stands for all"] = "first",
        pooler: Annotated[bool, "whether a dense layer with tanh comes before the scores"] = True,
        smoothing: Annotated[float, "share of a label that is spread over all classes", Range(0, below=1)] = 0.0,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.pool = pool
        self.smoothing = smoothing
        self.texts = labelled.Texts(shape, vocabulary, "classify")
        self.head = Pooled(shape.width, classes) if pooler else Plain(shape.width, classes)

    def example_count(self, tokens: Tokens, length: int) -> int:
        labelled.one_each(tokens, "classify")
        labelled.within(labelled.told(tokens).values, self.classes, "classify")
        return len(tokens.documents) - 1

    def example_lengths(self, tokens: Tokens, length: int) -> labelled.Array:
        return self.texts.lengths(tokens, length)

    def skipped_documents(self, tokens: Tokens, length: int) -> Mapping[str, int]:
        return self.texts.left_out(tokens, length)

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        index = draw.index.numpy()
        laid = self.texts(tokens, index, length)
        labels = torch.from_numpy(labels_of(tokens, index))
        return TrainingExamples({"body": laid.stream}, {"labels": labels, "last": laid.last})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        scores: Tensor = self.head(hidden)
        return scores

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        smoothing = self.smoothing if self.training else 0.0
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"], smoothing)}

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
        """With one added to each class that is scored."""
        return scoring.prior(scoring.counted(labels_of(train), self.classes), targets["labels"])

    def cost(self, load: Load) -> Cost:
        return self.head.cost(load)

    def head_positions(self, length: int) -> int:
        return 1

    def metrics(self) -> Mapping[str, Metric]:
        return scoring.of_classes(self.classes)

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        for name in scoring.OF_CLASSES:
            scoring.update(metrics[name], self._logits(run), run.targets["labels"])

    def _logits(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(pooled(run, self.pool), run.unembed))
