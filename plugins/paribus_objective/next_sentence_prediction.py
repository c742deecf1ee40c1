"""Next sentence prediction: classify whether the second segment follows the first or is from another document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

import numpy as np
import torch

from paribus import Draw, Norms, Objective, ObjectiveTraits, Shape, Tokens, TrainingExamples, Vocabulary
from paribus_objective import class_head, predictions, segment_objective
from paribus_objective.segments import MARKS, Array, ChunkCache, SegmentLayout, Span, truncate


@final
class NextSentencePrediction(Objective):
    """Next sentence prediction. Label 0: B follows A in its document; 1: B is from another document, with probability
    one half. "BERT" (Devlin et al. 2019).

    An example is a chunk of consecutive sentences, split between two of them. (B, T, D) -> (B, 2), from the first
    token.
    """

    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "segments",
        "corrupts": False,
        "visibility": "both",
        "parts": [],
        "segments": True,
        "needs": ["cls", "sep", "sentences", "documents"],
        "unembeds": False,
        "predicts": "class",
    }
    example_count = segment_objective.example_count
    logits = class_head.logits
    class_logits = class_head.pooled_logits
    forward = class_head.forward
    unigram_loss = class_head.balanced_unigram_loss
    cost = class_head.cost
    head_positions = class_head.one_position
    metrics = class_head.accuracy
    update_metrics = class_head.update_metrics
    class_names: ClassVar[Sequence[str]] = ("next", "other")
    form_texts = predictions.form_segments
    predict = predictions.predict_classes

    def __init__(self, shape: Shape, vocabulary: Vocabulary, norm: Norms) -> None:
        super().__init__()
        self.classes = 2
        self.pool: class_head.Pool = "first"
        self.layout = SegmentLayout(shape, vocabulary, "nsp")
        self.chunks = ChunkCache("nsp", minimum_documents=2, minimum_length=shape.length)
        self.head = class_head.PooledHead(shape.width, self.classes)

    def example_lengths(self, tokens: Tokens, length: int) -> Array:
        """Return an upper bound: a segment of another document is up to a sentence longer than the one it replaces."""
        chunks = self.chunks(tokens, length)
        lengths: Array = (chunks.lengths(length) + np.diff(chunks.bounds).max() - 1).clip(max=length)
        return lengths

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        chunks = self.chunks(tokens, length)
        a, b = chunks.split(draw)
        other = chunks.from_other_documents(a, b, draw)
        is_random = (draw.uniform("next", 1)[:, 0] < 0.5).numpy()
        b = Span(np.where(is_random, other.start, b.start), np.where(is_random, other.length, b.length))
        a, b = truncate(a, b, length - MARKS, draw)
        return TrainingExamples(
            {"body": self.layout(tokens, a, b, length)}, {"labels": torch.from_numpy(is_random).long()}
        )
