"""Where a corpus is cut into examples, found once: runs of words, and contexts that slide beside their questions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar, final

import numpy as np

from paribus import Tokens

T = TypeVar("T")
Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


@final
class Once(Generic[T]):
    """What was found in each corpus that was asked about. Copies and other processes start without any."""

    def __init__(self, find: Callable[[Tokens], T]) -> None:
        self.find = find
        self._found: dict[int, tuple[Tokens, T]] = {}

    def __reduce__(self) -> tuple[type[Once[T]], tuple[Callable[[Tokens], T]]]:
        return Once, (self.find,)

    def __call__(self, tokens: Tokens) -> T:
        if id(tokens) not in self._found:  # the tokens are kept, so that nobody else gets their id
            self._found[id(tokens)] = (tokens, self.find(tokens))
        return self._found[id(tokens)][1]


class Words(NamedTuple):
    """Runs of words, each of one document: (N,) each."""

    document: Array
    first: Array  # its first word, and the one behind its last
    last: Array


def runs(tokens: Tokens, most: int) -> Words:
    """Each document in runs of words that are at most `most` tokens together; a longer word is a run of its own."""
    bounds, documents = np.asarray(tokens.sentences), np.asarray(tokens.documents)
    ends = np.repeat(documents[1:], np.diff(documents))  # of each word's document
    fits = np.searchsorted(bounds, bounds[:-1] + most, side="right") - 1  # up to which word there is room
    after = np.minimum(np.maximum(fits, np.arange(len(ends)) + 1), ends)
    first, at = [], 0
    while at < len(after):
        first.append(at)
        at = int(after[at])
    found = np.array(first, dtype=np.int64)
    return Words(np.searchsorted(documents, found, side="right") - 1, found, after[found])


class Contexts(NamedTuple):
    """Pieces of contexts, each beside its question: (N,) each."""

    document: Array
    start: Array  # its first token, counted from the context's own
    length: Array
    asked: Array  # tokens of the question that are kept


def contexts(tokens: Tokens, most: int, question: int, stride: int) -> Contexts:
    """Each context whole where it fits behind its question, or else in pieces that begin `stride` tokens apart.

    No token of a context is in no piece: a stride that is longer than there is room is cut to it.
    """
    assert tokens.targets is not None, "the rules let only a corpus of pairs come here"
    asked = np.minimum(_sizes(tokens), question)
    sizes, room = _sizes(tokens.targets), most - asked
    step = np.minimum(stride, room)
    pieces = 1 + np.maximum(-(-(sizes - room) // step), 0)
    document = np.repeat(np.arange(len(sizes)), pieces)
    start = (np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * step[document]
    return Contexts(document, start, np.minimum(room[document], sizes[document] - start), asked[document])


def _sizes(tokens: Tokens) -> Array:
    sizes: Array = np.diff(np.asarray(tokens.sentences)[np.asarray(tokens.documents)])
    return sizes
