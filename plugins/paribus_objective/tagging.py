"""Tagging: score a label for each word."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, NamedTuple, final

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

if TYPE_CHECKING:
    from torchmetrics import Metric

NO_WORD: Final = -1  # place of a token that has no label


@final
class Tagging(Objective):
    """Tagging: a label for each word, scored at its first token. "BERT" (Devlin et al. 2019), 5.3.

    Other tokens, special tokens and padding have no label. A text longer than the sequence is split between words into
    several examples, so each word is in one. `f1` is that of the tags of words. With `entities`, whole entities are
    scored too: their words are joined over the examples of a text, and compared as conlleval does. (B, T, D) -> (B, T,
    C).
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
    predict = predictions.predict_tags

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        classes: Annotated[int, "number of tags, at least as many as the corpus has", Range(2, 65536)] = 2,
        smoothing: Annotated[float, "label smoothing: share spread over all tags", Range(0, below=1)] = 0.0,
        entities: Annotated[bool, "score whole entities, from the names of the tags: O, B-TYPE, I-TYPE …"] = False,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.smoothing = smoothing
        self.entities = entities
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
        self._codes(tokens)
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
        words, count = _words(tokens, runs, span), len(span.start)
        targets = {"labels": words.spread(_labels(tokens, words), count, length, IGNORED)}
        codes = self._codes(tokens)
        if codes is not None:
            places = words.number + words.document  # with a gap between documents
            targets["places"] = words.spread(places, count, length, NO_WORD)
            targets["codes"] = codes[None].repeat(count, axis=0)
        return TrainingExamples(
            {"body": self.layout(tokens, span, None, length)},
            {name: torch.from_numpy(target) for name, target in targets.items()},
        )

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
        """Return the loss of predicting the tag frequencies of the training split, with add-one smoothing."""
        tags = labelled.require_labels(train).values.astype(np.int64)
        return scoring.frequency_loss(scoring.label_counts(tags, self.classes), targets["labels"])

    def class_logits(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(run.hidden("body"), run.unembed))

    def metrics(self) -> Mapping[str, Metric]:
        if not self.entities:
            return class_head.metrics(self)
        from paribus_objective import entities

        scores = {f"entity-{score}": entities.EntityScore(score) for score in entities.SCORES}
        return {**class_head.metrics(self), **scores}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        class_head.update_metrics(self, run, metrics)
        if not self.entities:
            return
        labels, codes = run.targets["labels"], run.targets["codes"][0]
        places = run.targets["places"].masked_fill(labels == IGNORED, NO_WORD)
        predictions, gold = codes[self.class_logits(run).argmax(-1)], codes[labels.clamp(min=0)]
        for name, metric in metrics.items():
            if name.startswith("entity-"):
                metric.update(places.flatten(), predictions.flatten(), gold.flatten())

    def _codes(self, tokens: Tokens) -> Array | None:
        """(C,) codes of the tags, for scores of entities."""
        if not self.entities:
            return None
        from paribus_objective import entities

        return entities.tag_codes(labelled.require_labels(tokens).names, self.classes)

    def _span(self, tokens: Tokens, runs: WordRuns) -> Span:
        """Return the tokens of each run; a word longer than the sequence is truncated, and keeps its label."""
        bounds = np.asarray(tokens.sentences)
        return Span(bounds[runs.start], np.minimum(bounds[runs.stop] - bounds[runs.start], self.text_limit))


class _Words(NamedTuple):
    """Words of a batch of examples, (N,) each."""

    example: Array  # number of the example in the batch
    number: Array  # number of the word in the corpus
    document: Array
    position: Array  # of its first token

    def spread(self, values: Array, examples: int, length: int, fill: int) -> Array:
        """(N,) -> (B, T): the value of each word at its first token, and `fill` elsewhere."""
        spread = np.full((examples, length), fill, dtype=np.int64)
        spread[self.example, self.position] = values.astype(np.int64)
        return spread


def _words(tokens: Tokens, runs: WordRuns, span: Span) -> _Words:
    """Return the words of each run; its tokens follow one special token."""
    counts = runs.stop - runs.start
    example = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(example)) - np.repeat(np.cumsum(counts) - counts, counts) + runs.start[example]
    position = 1 + np.asarray(tokens.sentences)[number] - span.start[example]
    return _Words(example, number, runs.document[example], position)


def _labels(tokens: Tokens, words: _Words) -> Array:
    """(N,) the label of each word."""
    labels, first = labelled.require_labels(tokens), np.asarray(tokens.documents)
    values: Array = labels.values[labels.documents[words.document] + words.number - first[words.document]]
    return values
