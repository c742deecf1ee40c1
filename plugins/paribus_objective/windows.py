"""Cached cuts of a corpus into examples: runs of words, and sliding windows over contexts beside their questions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar, final

import numpy as np

from paribus import Tokens

T = TypeVar("T")
Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


@final
class CorpusCache(Generic[T]):
    """Results of `compute` for each corpus; copies and other processes start with an empty cache."""

    def __init__(self, compute: Callable[[Tokens], T]) -> None:
        self.compute = compute
        self._cache: dict[int, tuple[Tokens, T]] = {}

    def __reduce__(self) -> tuple[type[CorpusCache[T]], tuple[Callable[[Tokens], T]]]:
        return CorpusCache, (self.compute,)

    def __call__(self, tokens: Tokens) -> T:
        if id(tokens) not in self._cache:  # it holds the tokens too, so that no other corpus gets their id
            self._cache[id(tokens)] = (tokens, self.compute(tokens))
        return self._cache[id(tokens)][1]


class WordRuns(NamedTuple):
    """Runs of words, each of one document: (N,) each."""

    document: Array
    start: Array  # its first word
    stop: Array  # the word after its last


def word_runs(tokens: Tokens, limit: int) -> WordRuns:
    """Cut each document into runs of words with at most `limit` tokens; a longer word is a run of its own."""
    bounds, documents = np.asarray(tokens.sentences), np.asarray(tokens.documents)
    ends = np.repeat(documents[1:], np.diff(documents))  # of each word's document
    fitting = np.searchsorted(bounds, bounds[:-1] + limit, side="right") - 1  # the word up to which a run fits
    stops = np.minimum(np.maximum(fitting, np.arange(len(ends)) + 1), ends)
    starts, word = [], 0
    while word < len(stops):
        starts.append(word)
        word = int(stops[word])
    start = np.array(starts, dtype=np.int64)
    return WordRuns(np.searchsorted(documents, start, side="right") - 1, start, stops[start])


class ContextWindows(NamedTuple):
    """Windows of contexts, each with its question: (N,) each."""

    document: Array
    start: Array  # its first token, counted from the start of the context
    length: Array
    question_length: Array  # after truncation


def context_windows(tokens: Tokens, limit: int, max_question_length: int, stride: int) -> ContextWindows:
    """Return each context whole if it fits beside its question, otherwise in windows that start `stride` tokens apart.

    The windows cover every token of a context: a stride that is longer than a window is reduced to it.
    """
    assert tokens.targets is not None, "the engine checks that the corpus has pairs"
    question_lengths = np.minimum(_document_lengths(tokens), max_question_length)
    lengths, room = _document_lengths(tokens.targets), limit - question_lengths
    step = np.minimum(stride, room)
    counts = 1 + np.maximum(-(-(lengths - room) // step), 0)
    document = np.repeat(np.arange(len(lengths)), counts)
    start = (np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)) * step[document]
    length = np.minimum(room[document], lengths[document] - start)
    return ContextWindows(document, start, length, question_lengths[document])


def _document_lengths(tokens: Tokens) -> Array:
    lengths: Array = np.diff(np.asarray(tokens.sentences)[np.asarray(tokens.documents)])
    return lengths
