"""Documents with labels as examples: each a whole text, or a pair of texts, from its beginning as far as rows go."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from paribus import DataError, Labels, Problem, Shape, Stream, Tokens, Vocabulary
from paribus_objective.segments import MARKS, Layout, Span, halved

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


class Laid(NamedTuple):
    """Examples as a stack reads them."""

    stream: Stream
    last: Tensor  # (B,) the row of the last mark, which all others come before


@final
class Texts:
    """`[cls] A [sep]` for a corpus of texts, `[cls] A [sep] B [sep]` for one of pairs."""

    def __init__(
        self, shape: Shape, vocabulary: Vocabulary, who: str, marks: tuple[str, str, str] = ("cls", "sep", "sep")
    ) -> None:
        self.layout = Layout(shape, vocabulary, who, marks)

    def __call__(self, tokens: Tokens, index: Array, length: int) -> Laid:
        """The documents of the index; what is longer than there are rows is cut at its end, of a pair the longer
        first, as BERT does."""
        a, b = whole(tokens, index), None
        if tokens.targets is None:
            a = a._replace(length=np.minimum(a.length, length - MARKS + 1))
        else:
            b = whole(tokens.targets, index)
            kept_a, kept_b = halved(a.length, b.length, length - MARKS)
            a, b = a._replace(length=kept_a), b._replace(length=kept_b)
        last = 1 + a.length + (0 if b is None else 1 + b.length)
        return Laid(self.layout(tokens, a, b, length, other=tokens.targets), torch.from_numpy(last))

    def lengths(self, tokens: Tokens, length: int) -> Array:
        """How many rows each document takes."""
        rows: Array = np.minimum(_rows(tokens), length)
        return rows

    def left_out(self, tokens: Tokens, length: int) -> dict[str, int]:
        """Tokens behind where texts were cut."""
        return {"tokens of texts that are longer than their rows": int(np.maximum(_rows(tokens) - length, 0).sum())}


def _rows(tokens: Tokens) -> Array:
    """How many rows each document would take."""
    every = np.arange(len(tokens.documents) - 1)
    sizes = whole(tokens, every).length + MARKS - 1
    return sizes if tokens.targets is None else sizes + whole(tokens.targets, every).length + 1


def whole(tokens: Tokens, index: Array) -> Span:
    """Documents from their first token to their last."""
    documents = np.asarray(tokens.documents)
    first, last = (np.asarray(tokens.sentences)[documents[index + at]] for at in (0, 1))
    return Span(first, last - first)


def told(tokens: Tokens) -> Labels:
    """What a corpus tells of its documents."""
    assert tokens.labels is not None, "the rules let only a corpus with labels come here"
    return tokens.labels


def one_each(tokens: Tokens, who: str) -> None:
    """Refuses a corpus of which not every document has one label."""
    counts = np.diff(told(tokens).documents)
    wrong = np.flatnonzero(counts != 1)
    if wrong.size:
        what = f"document {wrong[0]:,} has {counts[wrong[0]]} labels, and {who} takes one of each"
        raise DataError(Problem(code="labels", path="corpus", message=what, valid="one label a document"))


def within(values: Array, classes: int, who: str) -> None:
    """Refuses labels that number no class."""
    wrong = np.flatnonzero((values < 0) | (values >= classes) | (values != np.floor(values)))
    if wrong.size:
        what = f"the corpus has the label {values[wrong[0]]:g}, but {who} scores {classes} classes"
        valid = f"whole numbers from 0 to {classes - 1}, or more `objective.classes`"
        raise DataError(Problem(code="labels", path="corpus", message=what, valid=valid))
