"""Image classification: score classes from the class token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

import numpy as np
import torch
from torch import nn

from paribus import (
    Cost,
    DataError,
    Draw,
    Load,
    Norms,
    Objective,
    ObjectiveTraits,
    Problem,
    Range,
    Role,
    Shape,
    Stream,
    Tokens,
    TrainingExamples,
    Vocabulary,
    labels_of,
)
from paribus_objective import class_head, labelled, predictions


@final
class ImageClassification(Objective):
    """Image classification from the first token, which represents the image: "An Image is Worth 16x16 Words"
    (Dosovitskiy et al. 2021).

    The head `linear` is that of their fine-tuning; `mlp`, a layer with tanh before the scores, that of their
    pre-training. Label smoothing: "Rethinking the Inception Architecture for Computer Vision" (Szegedy et al. 2016); it
    applies in training only. (B, T, D) -> (B, C).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "images",
        "corrupts": False,
        "visibility": "both",
        "parts": [],
        "segments": False,
        "needs": ["labels"],
        "options_from_corpus": {"classes": "least"},
        "unembeds": False,
        "predicts": "class",
    }
    roles: ClassVar[Mapping[str, Role]] = {"head.weight": "head"}
    logits = class_head.logits
    class_logits = class_head.pooled_logits
    forward = class_head.smoothed_forward
    unigram_loss = class_head.unigram_loss
    head_positions = class_head.one_position
    metrics = class_head.accuracy
    update_metrics = class_head.update_metrics
    predict = predictions.predict_classes

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        classes: Annotated[int, "number of classes, at least as many as the corpus has", Range(2, 65536)] = 1000,
        head: Annotated[Literal["linear", "mlp"], "one matrix, or a layer with tanh before it"] = "linear",
        smoothing: Annotated[float, "label smoothing: share spread over all classes", Range(0, below=1)] = 0.0,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.pool: class_head.Pool = "first"
        self.smoothing = smoothing
        self.head: nn.Linear | class_head.PooledHead = (
            nn.Linear(shape.width, classes) if head == "linear" else class_head.PooledHead(shape.width, classes)
        )

    def example_count(self, tokens: Tokens, length: int) -> int:
        return len(tokens.documents) - 1

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        index = draw.index.numpy()
        start, image_sizes = labelled.document_spans(tokens, index)
        sizes = np.unique(image_sizes)
        if len(sizes) > 1:
            message = f"expected images of one size, got {sizes[0]:,} and {sizes[-1]:,} values in one batch"
            raise DataError(
                Problem(code="image-size-mismatch", path="corpus", message=message, valid="images of one size")
            )
        values = np.asarray(tokens.ids)[start[:, None] + np.arange(sizes[0])]
        pixels = torch.from_numpy(values.astype(np.uint8))  # an eighth of the memory of 64-bit ids
        return TrainingExamples({"body": Stream(pixels)}, {"labels": torch.from_numpy(labels_of(tokens, index))})

    def cost(self, load: Load) -> Cost:
        if isinstance(self.head, class_head.PooledHead):
            return self.head.cost(load)
        return Cost(flops=2 * load.head_positions * self.head.weight.numel())
