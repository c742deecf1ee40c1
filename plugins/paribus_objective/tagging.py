"""Tagging: score a label for each word."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from paribus import (
    IGNORED,
    DataError,
    Draw,
    ForwardPass,
    Norms,
    Objective,
    ObjectiveTraits,
    Problem,
    Range,
    Role,
    Shape,
    Tokens,
    TrainingExamples,
    Vocabulary,
)
from paribus_objective import class_head, labelled, predictions, scoring
from paribus_objective.segments import MARKS, SegmentLayout, Span
from paribus_objective.windows import Array, CorpusCache, WordRuns, word_runs


@final
class Tagging(Objective):
    """Tagging: a label for each word, scored at its first token. "BERT" (Devlin et al. 2019), 5.3.

    Other tokens, special tokens and padding have no label. A text longer than the sequence is split between words into
    several examples, so each word is in one. (B, T, D) -> (B, T, C).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "texts",
        "corrupts": False,
        "visibility": "any",
        "parts": [],
        "segments": True,
        "needs": ["cls", "sep", "documents", "tags"],
        "options_from_corpus": {"classes": "least"},
        "predicts": "tags",
        "unembeds": False,
    }
    roles: ClassVar[Mapping[str, Role]] = {"head.weight": "head"}
    logits = class_head.logits
    forward = class_head.smoothed_forward
    cost = class_head.linear_cost
    head_positions = class_head.every_position
    metrics = class_head.metrics
    update_metrics = class_head.update_metrics
    predict = predictions.predict_tags

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        classes: Annotated[int, "number of tags, at least as many as the corpus has", Range(2, 65536)] = 2,
        smoothing: Annotated[float, "label smoothing: share spread over all tags", Range(0, below=1)] = 0.0,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.smoothing = smoothing
        self.layout = SegmentLayout(shape, vocabulary, "tag")
        self.text_limit = shape.length - MARKS + 1
        self.runs = CorpusCache(partial(word_runs, limit=self.text_limit))
        self.head = nn.Linear(shape.width, classes)

    def example_count(self, tokens: Tokens, length: int) -> int:
        labels = labelled.require_labels(tokens)
        counts, words = np.diff(labels.documents), np.diff(np.asarray(tokens.documents))
        wrong = np.flatnonzero(counts != words)
        if wrong.size:
            message = f"document {wrong[0]:,} has {counts[wrong[0]]} tags and {words[wrong[0]]} words"
            raise DataError(Problem(code="labels", path="corpus", message=message, valid="a tag for each word"))
        labelled.check_class_range(labels.values[labels.values != IGNORED], self.classes, "tag")
        return len(self.runs(tokens).start)

    def example_lengths(self, tokens: Tokens, length: int) -> Array:
        span = self._span(tokens, self.runs(tokens))
        sequence_lengths: Array = np.minimum(span.length + MARKS - 1, length)
        return sequence_lengths

    def skipped_documents(self, tokens: Tokens, length: int) -> Mapping[str, int]:
        runs, bounds = self.runs(tokens), np.asarray(tokens.sentences)
        truncated = bounds[runs.stop] - bounds[runs.start] - self._span(tokens, runs).length
        return {"tokens truncated from words longer than the sequence": int(truncated.sum())}

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        runs = WordRuns(*(column[draw.index.numpy()] for column in self.runs(tokens)))
        span = self._span(tokens, runs)
        return TrainingExamples(
            {"body": self.layout(tokens, span, None, length)},
            {"labels": torch.from_numpy(_first_token_labels(tokens, runs, span, length))},
        )

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
        """Return the loss of predicting the tag frequencies of the training split, with add-one smoothing."""
        tags = labelled.require_labels(train).values.astype(np.int64)
        return scoring.frequency_loss(scoring.label_counts(tags, self.classes), targets["labels"])

    def class_logits(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(run.hidden("body"), run.unembed))

    def _span(self, tokens: Tokens, runs: WordRuns) -> Span:
        """Return the tokens of each run; a word longer than the sequence is truncated, and keeps its label."""
        bounds = np.asarray(tokens.sentences)
        return Span(bounds[runs.start], np.minimum(bounds[runs.stop] - bounds[runs.start], self.text_limit))


def _first_token_labels(tokens: Tokens, runs: WordRuns, span: Span, length: int) -> Array:
    """(B, T) the label of each word at its first token; tokens follow one special token."""
    labels, counts = labelled.require_labels(tokens), runs.stop - runs.start
    example = np.repeat(np.arange(len(counts)), counts)
    word = np.arange(len(example)) - np.repeat(np.cumsum(counts) - counts, counts) + runs.start[example]
    document = runs.document[example]
    values = labels.values[labels.documents[document] + word - np.asarray(tokens.documents)[document]]
    token_labels = np.full((len(counts), length), IGNORED, dtype=np.int64)
    token_labels[example, 1 + np.asarray(tokens.sentences)[word] - span.start[example]] = values.astype(np.int64)
    return token_labels
