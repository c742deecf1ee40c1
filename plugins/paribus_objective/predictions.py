"""Predictions for texts without labels: classes, tags, scores and answers of a trained head."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paribus import IGNORED, ForwardPass, Prediction, Tokens, TrainingExamples
from paribus_objective import labelled
from paribus_objective.segments import MARKS, SegmentLayout, truncated_lengths


class HasClasses(Protocol):
    """Objective that scores classes."""

    def class_logits(self, run: ForwardPass) -> Tensor: ...


class HasLayout(Protocol):
    """Objective on two segments."""

    @property
    def layout(self) -> SegmentLayout: ...


def probabilities(logits: Tensor) -> list[list[float]]:
    """(N, C) -> the probability of each class."""
    rows: list[list[float]] = logits.double().softmax(-1).tolist()
    return rows


def predict_classes(objective: HasClasses, run: ForwardPass, tokens: Tokens) -> list[Prediction]:
    return [Prediction(classes=row) for row in probabilities(objective.class_logits(run))]


def predict_tags(objective: HasClasses, run: ForwardPass, tokens: Tokens) -> list[Prediction]:
    """Return the tags of each document; windows are in the order of their words, which are labelled once each."""
    is_first = run.targets["labels"] != IGNORED
    rows = iter(probabilities(objective.class_logits(run)[is_first]))
    counts = np.diff(np.asarray(tokens.documents)).tolist()
    return [Prediction(words=[next(rows) for _ in range(count)]) for count in counts]


def form_segments(objective: HasLayout, tokens: Tokens, length: int) -> TrainingExamples:
    """Return each pair of texts as two segments, the longer one truncated at its end."""
    assert tokens.targets is not None, "the engine checks that there are pairs"
    index = np.arange(len(tokens.documents) - 1)
    a, b = labelled.document_spans(tokens, index), labelled.document_spans(tokens.targets, index)
    length_a, length_b = truncated_lengths(a.length, b.length, length - MARKS)
    spans = a._replace(length=length_a), b._replace(length=length_b)
    stream = objective.layout(tokens, *spans, length, other=tokens.targets)
    return TrainingExamples({"body": stream}, {"labels": torch.zeros(len(index), dtype=torch.int64)})
