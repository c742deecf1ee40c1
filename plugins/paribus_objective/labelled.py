"""Labelled documents as examples: one text or a pair of texts, truncated at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor

from paribus import DataError, Labels, Problem, Shape, Stream, Tokens, Vocabulary
from paribus_objective.segments import MARKS, SegmentLayout, Span, truncated_lengths

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


class TextBatch(NamedTuple):
    """A batch of texts as the model reads them."""

    stream: Stream
    last: Tensor  # (B,) the position of the last special token before the padding


@final
class LabelledTexts:
    """Layout `[cls] A [sep]` for a corpus of texts, `[cls] A [sep] B [sep]` for one of pairs."""

    def __init__(
        self, shape: Shape, vocabulary: Vocabulary, component: str, marks: tuple[str, str, str] = ("cls", "sep", "sep")
    ) -> None:
        self.layout = SegmentLayout(shape, vocabulary, component, marks)

    def __call__(self, tokens: Tokens, index: Array, length: int) -> TextBatch:
        """Return the documents of the index, truncated at the end to `length`; of a pair the longer text first, as in
        BERT."""
        a, b = document_spans(tokens, index), None
        if tokens.targets is None:
            a = a._replace(length=np.minimum(a.length, length - MARKS + 1))
        else:
            b = document_spans(tokens.targets, index)
            length_a, length_b = truncated_lengths(a.length, b.length, length - MARKS)
            a, b = a._replace(length=length_a), b._replace(length=length_b)
        last = 1 + a.length + (0 if b is None else 1 + b.length)
        return TextBatch(self.layout(tokens, a, b, length, other=tokens.targets), torch.from_numpy(last))


class HasTexts(Protocol):
    """Objective that reads labelled texts."""

    @property
    def texts(self) -> LabelledTexts: ...


def example_lengths(objective: HasTexts, tokens: Tokens, length: int) -> Array:
    """Return the sequence length of each document."""
    sequence_lengths: Array = np.minimum(_full_lengths(tokens), length)
    return sequence_lengths


def skipped_documents(objective: HasTexts, tokens: Tokens, length: int) -> Mapping[str, int]:
    """Return the number of tokens truncated from long texts."""
    truncated = int(np.maximum(_full_lengths(tokens) - length, 0).sum())
    return {"tokens truncated from texts longer than the sequence": truncated}


def _full_lengths(tokens: Tokens) -> Array:
    """Return the sequence length of each document without truncation."""
    index = np.arange(len(tokens.documents) - 1)
    sizes = document_spans(tokens, index).length + MARKS - 1
    return sizes if tokens.targets is None else sizes + document_spans(tokens.targets, index).length + 1


def document_spans(tokens: Tokens, index: Array) -> Span:
    """Return documents from their first token to their last."""
    bounds = document_bounds(tokens)
    return Span(bounds[index], bounds[index + 1] - bounds[index])


def document_bounds(tokens: Tokens) -> Array:
    """(documents + 1,) start of each document in the flat ids."""
    bounds: Array = np.asarray(tokens.sentences)[np.asarray(tokens.documents)]
    return bounds


def require_labels(tokens: Tokens) -> Labels:
    """Return the labels of a corpus."""
    assert tokens.labels is not None, "the engine checks that the corpus has labels"
    return tokens.labels


def check_one_label_each(tokens: Tokens, component: str) -> None:
    """Raise a DataError unless every document has one label."""
    counts = np.diff(require_labels(tokens).documents)
    wrong = np.flatnonzero(counts != 1)
    if wrong.size:
        message = f"{component} expects one label per document; document {wrong[0]:,} has {counts[wrong[0]]}"
        raise DataError(Problem(code="labels", path="corpus", message=message, valid="one label per document"))


def check_class_range(values: Array, classes: int, component: str) -> None:
    """Raise a DataError if a label is not the number of a class."""
    wrong = np.flatnonzero((values < 0) | (values >= classes) | (values != np.floor(values)))
    if wrong.size:
        message = f"{component} has {classes} classes; the corpus has the label {values[wrong[0]]:g}"
        valid = f"integers from 0 to {classes - 1}, or a larger `objective.classes`"
        raise DataError(Problem(code="labels", path="corpus", message=message, valid=valid))
