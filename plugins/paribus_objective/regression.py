"""Text regression: predict a number from a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, final

import numpy as np
import torch
from torch import Tensor

from paribus import (
    Draw,
    ForwardPass,
    LossTerm,
    Norms,
    Objective,
    ObjectiveTraits,
    Prediction,
    Shape,
    Tokens,
    TrainingExamples,
    Vocabulary,
    at_least_float32,
)
from paribus_objective import class_head, labelled

if TYPE_CHECKING:
    from torchmetrics import Metric

Kind = Literal["pearson", "spearman"]
METRICS: Final[tuple[Kind, ...]] = ("pearson", "spearman")


@final
class Regression(Objective):
    """Text regression, with a squared error, of `[cls] A [sep]`, or of `[cls] A [sep] B [sep]` for a corpus of pairs:
    STS-B, as "BERT" (Devlin et al. 2019) is fine-tuned on it.

    (B, T, D) -> (B, 1), from the first token, the mean of all, or the last token.
    """

    terms: ClassVar[Mapping[str, str]] = {"loss": "has_score"}
    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "texts",
        "corrupts": False,
        "visibility": "both",
        "parts": [],
        "segments": True,
        "needs": ["cls", "sep", "documents", "scores"],
        "unembeds": False,
        "squared_error": True,
        "predicts": "score",
    }
    example_lengths = labelled.example_lengths
    skipped_documents = labelled.skipped_documents
    logits = class_head.logits
    cost = class_head.cost
    head_positions = class_head.one_position

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        pool: Annotated[class_head.Pool, "vector that is scored: first or last token, or the mean"] = "first",
        pooler: Annotated[bool, "put a dense layer with tanh before the score"] = True,
    ) -> None:
        super().__init__()
        self.pool: class_head.Pool = pool
        self.texts = labelled.LabelledTexts(shape, vocabulary, "regress")
        self.head: class_head.PooledHead | class_head.LinearHead = (
            class_head.PooledHead(shape.width, 1) if pooler else class_head.LinearHead(shape.width, 1)
        )

    def example_count(self, tokens: Tokens, length: int) -> int:
        labelled.check_one_label_each(tokens, "regress")
        return len(tokens.documents) - 1

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        index = draw.index.numpy()
        batch = self.texts(tokens, index, length)
        scores = torch.from_numpy(labelled.require_labels(tokens).values[index].astype(np.float32))
        # A score may be any number, so another target marks the examples that have one.
        has_score = torch.zeros(len(index), dtype=torch.int64)
        return TrainingExamples({"body": batch.stream}, {"has_score": has_score, "scores": scores, "last": batch.last})

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        mask = run.targets["has_score"] >= 0
        error = (at_least_float32(self._predictions(run)) - run.targets["scores"]).square() * mask
        return {"loss": LossTerm(error.sum(), mask.sum())}

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
        """Return the squared error of predicting the mean score of the training split."""
        scores = targets["scores"][targets["has_score"] >= 0].double()
        mean = float(labelled.require_labels(train).values.mean())
        return float((scores - mean).square().mean()) if len(scores) else None

    def metrics(self) -> Mapping[str, Metric]:
        from paribus_objective import metrics

        return {kind: metrics.Correlation(kind) for kind in METRICS}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        for name in METRICS:
            metrics[name].update(self._predictions(run), run.targets["scores"])

    def predict(self, run: ForwardPass, tokens: Tokens) -> list[Prediction]:
        return [Prediction(score=score) for score in self._predictions(run).double().tolist()]

    def _predictions(self, run: ForwardPass) -> Tensor:
        """(B,)."""
        return class_head.pooled_logits(self, run).squeeze(-1)
