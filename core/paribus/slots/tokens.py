"""Encoded documents of a corpus: the input of the data side of an objective. Imports no torch."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

Ints = np.ndarray[tuple[int], np.dtype[Any]]
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


class Labels(NamedTuple):
    """Labels of documents: document d has values[documents[d] : documents[d + 1]]."""

    values: Floats
    documents: Ints


class Tokens(Protocol):
    """Encoded documents of one split.

    `ids` is flat; sentence i is ids[sentences[i] : sentences[i + 1]]; document d has the sentences documents[d] up to,
    not including, documents[d + 1].
    """

    ids: Ints
    sentences: Ints
    documents: Ints
    languages: Ints | None  # language of each document, as an index of `Encoded.languages`, if the corpus has them
    targets: Tokens | None  # target side of a corpus of pairs, document by document
    labels: Labels | None  # if the corpus has labels


def labels_of(tokens: Tokens, index: Ints | None = None) -> Ints:
    """Return the class of each document, or of the documents at `index`, (B,), of a corpus with labels."""
    assert tokens.labels is not None, "expected a corpus with labels"
    values = tokens.labels.values if index is None else tokens.labels.values[index]
    return np.asarray(values).astype(np.int64)
