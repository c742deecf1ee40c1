"""Text classification: score classes from one vector of a text or a pair of texts."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch

from paribus import (
    Draw,
    Norms,
    Objective,
    ObjectiveTraits,
    Range,
    Shape,
    Tokens,
    TrainingExamples,
    Vocabulary,
    labels_of,
)
from paribus_objective import class_head, labelled, predictions


@final
class Classification(Objective):
    """Text classification of `[cls] A [sep]`, or of `[cls] A [sep] B [sep]` for a corpus of pairs: "BERT" (Devlin et
    al. 2019).

    The scored vector is the first token, the mean of all, or the last token; before the scores is BERT's pooler, a
    dense layer with tanh, unless it is switched off. Long texts are truncated at the end, of a pair the longer one
    first. (B, T, D) -> (B, C).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "texts",
        "corrupts": False,
        "visibility": "both",
        "parts": [],
        "segments": True,
        "needs": ["cls", "sep", "documents", "labels"],
        "options_from_corpus": {"classes": "least"},
        "predicts": "class",
        "unembeds": False,
    }
    example_lengths = labelled.example_lengths
    skipped_documents = labelled.skipped_documents
    logits = class_head.logits
    class_logits = class_head.pooled_logits
    forward = class_head.smoothed_forward
    unigram_loss = class_head.unigram_loss
    cost = class_head.cost
    head_positions = class_head.one_position
    metrics = class_head.metrics
    update_metrics = class_head.update_metrics
    predict = predictions.predict_classes

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        classes: Annotated[int, "number of classes, at least as many as the corpus has", Range(2, 65536)] = 2,
        pool: Annotated[class_head.Pool, "vector that is scored: first or last token, or the mean"] = "first",
        pooler: Annotated[bool, "put a dense layer with tanh before the scores"] = True,
        smoothing: Annotated[float, "label smoothing: share spread over all classes", Range(0, below=1)] = 0.0,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.pool: class_head.Pool = pool
        self.smoothing = smoothing
        self.texts = labelled.LabelledTexts(shape, vocabulary, "classify")
        self.head: class_head.PooledHead | class_head.LinearHead = (
            class_head.PooledHead(shape.width, classes) if pooler else class_head.LinearHead(shape.width, classes)
        )

    def example_count(self, tokens: Tokens, length: int) -> int:
        labelled.check_one_label_each(tokens, "classify")
        labelled.check_class_range(labelled.require_labels(tokens).values, self.classes, "classify")
        return len(tokens.documents) - 1

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        index = draw.index.numpy()
        batch = self.texts(tokens, index, length)
        labels = torch.from_numpy(labels_of(tokens, index))
        return TrainingExamples({"body": batch.stream}, {"labels": labels, "last": batch.last})
