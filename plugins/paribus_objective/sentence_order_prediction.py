"""Sentence order prediction: classify whether two consecutive segments are swapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

import numpy as np
import torch

from paribus import Draw, Norms, Objective, ObjectiveTraits, Shape, Tokens, TrainingExamples, Vocabulary
from paribus_objective import class_head, predictions, segment_objective
from paribus_objective.segments import MARKS, Array, ChunkCache, SegmentLayout, Span, truncate


@final
class SentenceOrderPrediction(Objective):
    """Sentence order prediction. Label 0: A comes before B in their document; 1: they are swapped, with probability one
    half. "ALBERT" (Lan et al. 2020).

    An example is a chunk of consecutive sentences, split between two of them. (B, T, D) -> (B, 2), from the first
    token.
    """

    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "segments",
        "corrupts": False,
        "visibility": "both",
        "parts": [],
        "segments": True,
        "needs": ["cls", "sep", "sentences"],
        "unembeds": False,
        "predicts": "class",
    }
    example_count = segment_objective.example_count
    example_lengths = segment_objective.example_lengths
    logits = class_head.logits
    class_logits = class_head.pooled_logits
    forward = class_head.forward
    unigram_loss = class_head.balanced_unigram_loss
    cost = class_head.cost
    head_positions = class_head.one_position
    metrics = class_head.accuracy
    update_metrics = class_head.update_metrics
    class_names: ClassVar[Sequence[str]] = ("in order", "swapped")
    form_texts = predictions.form_segments
    predict = predictions.predict_classes

    def __init__(self, shape: Shape, vocabulary: Vocabulary, norm: Norms) -> None:
        super().__init__()
        self.classes = 2
        self.pool: class_head.Pool = "first"
        self.layout = SegmentLayout(shape, vocabulary, "sop")
        self.chunks = ChunkCache("sop", minimum_documents=1, minimum_length=shape.length)
        self.head = class_head.PooledHead(shape.width, self.classes)

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        a, b = truncate(*self.chunks(tokens, length).split(draw), length - MARKS, draw)
        is_swapped = (draw.uniform("swap", 1)[:, 0] < 0.5).numpy()
        a, b = _where(is_swapped, b, a), _where(is_swapped, a, b)
        return TrainingExamples(
            {"body": self.layout(tokens, a, b, length)}, {"labels": torch.from_numpy(is_swapped).long()}
        )


def _where(condition: Array, span: Span, other: Span) -> Span:
    return Span(np.where(condition, span.start, other.start), np.where(condition, span.length, other.length))
