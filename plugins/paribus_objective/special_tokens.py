"""Special tokens: those that an objective requires, and the mask of tokens that are never predicted."""

from __future__ import annotations

from typing import Any

import numpy as np

from paribus import Problem, SpecError, Stream, Vocabulary

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


def require(vocabulary: Vocabulary, name: str, component: str) -> int:
    """Return the id of a special token; raise a SpecError if the tokenizer lacks it."""
    if name not in vocabulary.specials:
        available = ", ".join(sorted(vocabulary.specials)) or "none"
        message = f"{component} needs the special token `{name}`; the tokenizer has {available}"
        raise SpecError(Problem(code="missing-special-token", path="tokenizer", message=message))
    return vocabulary.specials[name]


def reserved_ids(vocabulary: Vocabulary) -> Array:
    """(V,) bool: ids that are not text."""
    reserved = np.zeros(max(vocabulary.size, *(i + 1 for i in vocabulary.reserved), 1), dtype=bool)
    reserved[sorted(vocabulary.reserved)] = True
    return reserved


def non_text(stream: Stream, reserved: Array) -> Array:
    """(B, T) bool: special tokens and padding, which are never predicted."""
    mask: Array = reserved.take(stream.tokens.numpy(), mode="clip")
    if stream.special is not None:
        mask |= stream.special.numpy()
    if stream.documents is not None:
        mask |= stream.documents.numpy() < 0
    return mask
