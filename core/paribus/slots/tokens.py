"""A corpus as ids: what the data side of an objective is given. It imports no torch."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

Ints = np.ndarray[tuple[int], np.dtype[Any]]
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


class Labels(NamedTuple):
    """What is to be told of documents: of document d the numbers values[documents[d] : documents[d + 1]]."""

    values: Floats
    documents: Ints


class Tokens(Protocol):
    """The encoded documents of one split. `ids` is flat; sentence i is ids[sentences[i] : sentences[i + 1]];
    document d has the sentences documents[d] up to, not including, documents[d + 1]."""

    ids: Ints
    sentences: Ints
    documents: Ints
    languages: Ints | None  # of each document, where the corpus tells them apart: which of `Encoded.languages`
    targets: Tokens | None  # of a corpus of pairs: the other side, document for document
    labels: Labels | None  # where a corpus has any


def labels_of(tokens: Tokens, index: Ints | None = None) -> Ints:
    """(B,) the class of each document, or of those at `index`; asked of a corpus that has `labels`."""
    assert tokens.labels is not None, "the rules let only a corpus with labels come here"
    values = tokens.labels.values if index is None else tokens.labels.values[index]
    return np.asarray(values).astype(np.int64)
