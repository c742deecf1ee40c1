"""The special tokens that an objective cannot do without, and those that none predicts."""

from __future__ import annotations

from typing import Any

import numpy as np

from paribus import Problem, SpecError, Stream, Vocabulary

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


def needed(vocabulary: Vocabulary, name: str, why: str) -> int:
    """The id of a special token, or the error of a tokenizer that has none."""
    if name not in vocabulary.specials:
        had = ", ".join(sorted(vocabulary.specials)) or "none"
        what = f"{why} needs the special token `{name}`, but the tokenizer has {had}"
        raise SpecError(Problem(code="no-special", path="tokenizer", message=what))
    return vocabulary.specials[name]


def table(vocabulary: Vocabulary) -> Array:
    """(V,) bool: which ids are none of text."""
    reserved = np.zeros(max(vocabulary.size, *(i + 1 for i in vocabulary.reserved), 1), dtype=bool)
    reserved[sorted(vocabulary.reserved)] = True
    return reserved


def outside(stream: Stream, reserved: Array) -> Array:
    """(B, T) bool: what is no text and is never predicted, that is special tokens and padding."""
    found: Array = reserved.take(stream.tokens.numpy(), mode="clip")
    if stream.special is not None:
        found |= stream.special.numpy()
    if stream.documents is not None:
        found |= stream.documents.numpy() < 0
    return found
