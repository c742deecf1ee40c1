"""Segment pairs, `[cls] A [sep] B [sep]`: selection of the segments from a corpus, and their layout as a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch

from paribus import PADDING, DataError, Draw, Problem, Shape, SpecError, Stream, Tokens, Vocabulary
from paribus_objective import special_tokens

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]

MARKS = 3  # cls, and a sep after each segment


class Span(NamedTuple):
    """A run of ids for each example, (B,): its start in the flat ids, and its length."""

    start: Array
    length: Array


@final
@dataclass(frozen=True)
class Chunks:
    """Chunks of a corpus that can be split into two segments: consecutive sentences of one document."""

    bounds: Array  # sentence i is ids[bounds[i] : bounds[i + 1]]; no sentence is empty
    documents: Array  # document d has the sentences documents[d] to documents[d + 1]; no document is empty
    start: Array  # (chunks,) the first sentence of each chunk
    stop: Array  # (chunks,) the sentence after its last one

    def lengths(self, limit: int) -> Array:
        """(chunks,) sequence length of each chunk, special tokens included, up to `limit`."""
        sizes: Array = self.bounds[self.stop] - self.bounds[self.start] + MARKS
        return sizes.clip(max=limit)

    def split(self, draw: Draw) -> tuple[Span, Span]:
        """Split each chunk of `draw.index` between two of its sentences, chosen uniformly."""
        start, stop = self.start[draw.index.numpy()], self.stop[draw.index.numpy()]
        middle = start + 1 + random_below(draw, "split", stop - start - 1)
        return self.span(start, middle), self.span(middle, stop)

    def from_other_documents(self, a: Span, b: Span, draw: Draw) -> Span:
        """Replace each `b` by a segment that starts at a random sentence of another document, chosen uniformly.

        It is at least as long as `b` if its document is: otherwise the length of a pair would reveal its label.
        """
        starts = self.bounds[self.documents[:-1]]
        document = np.searchsorted(starts, a.start, side="right") - 1
        other = random_below(draw, "document", np.full_like(document, len(starts) - 1))
        other += other >= document
        begin, end = self.documents[other], self.documents[other + 1]
        latest = np.searchsorted(self.bounds, self.bounds[end] - b.length, side="right")
        first = begin + random_below(draw, "sentence", np.maximum(latest - begin, 1))
        stop = np.searchsorted(self.bounds, self.bounds[first] + b.length, side="left")
        return self.span(first, np.minimum(stop, end))

    def span(self, start: Array, stop: Array) -> Span:
        return Span(self.bounds[start], self.bounds[stop] - self.bounds[start])


@final
class ChunkCache:
    """Chunks of each corpus, computed once; copies and other processes start with an empty cache.

    Chunks are cut for a length of `minimum_length` or more: a batch of shorter examples has the same chunks.
    """

    def __init__(self, component: str, minimum_documents: int, minimum_length: int = 0) -> None:
        self.component = component
        self.minimum_documents = minimum_documents
        self.minimum_length = minimum_length
        self._cache: dict[tuple[int, int], tuple[Tokens, Chunks]] = {}

    def __reduce__(self) -> tuple[type[ChunkCache], tuple[str, int, int]]:
        return ChunkCache, (self.component, self.minimum_documents, self.minimum_length)

    def __call__(self, tokens: Tokens, length: int) -> Chunks:
        length = max(length, self.minimum_length)
        key = (id(tokens), length)
        if key not in self._cache:  # it holds the tokens too, so that no other corpus gets their id
            self._cache[key] = (tokens, self._checked(cut_chunks(tokens, length - MARKS)))
        return self._cache[key][1]

    def _checked(self, chunks: Chunks) -> Chunks:
        documents = len(chunks.documents) - 1
        if documents < self.minimum_documents:
            message = f"{self.component} takes its negatives from another document; the corpus has {documents}"
            raise DataError(
                Problem(code="too-few-documents", path="corpus", message=message, valid="at least 2 documents")
            )
        if not len(chunks.start):
            message = f"{self.component} pairs consecutive sentences; every document has fewer than two"
            raise DataError(
                Problem(
                    code="too-few-sentences", path="corpus", message=message, valid="a document of at least 2 sentences"
                )
            )
        return chunks


def cut_chunks(tokens: Tokens, budget: int) -> Chunks:
    """Cut a corpus into chunks of `budget` tokens or more and of two sentences or more, which end with a document."""
    non_empty = np.flatnonzero(np.diff(tokens.sentences) > 0)
    bounds = np.append(np.asarray(tokens.sentences, dtype=np.int64)[non_empty], tokens.sentences[-1])
    # An empty document starts at the same sentence as the next one.
    documents = np.unique(np.searchsorted(non_empty, tokens.documents))
    ends = np.repeat(documents[1:], np.diff(documents))
    stops = np.maximum(np.searchsorted(bounds, bounds[:-1] + budget, side="left"), np.arange(len(ends)) + 2)
    stops = np.minimum(stops, ends)
    starts, sentence = [], 0
    while sentence < len(stops):
        starts.append(sentence)
        sentence = int(stops[sentence])
    chunks = np.array(starts, dtype=np.int64)
    chunks = chunks[stops[chunks] - chunks >= 2]
    return Chunks(bounds, documents, chunks, stops[chunks])


def random_below(draw: Draw, name: str, high: Array) -> Array:
    """(B,) random integers in [0, high), with a `high` < 2^24 for each example."""
    return np.asarray((draw.uniform(name, 1)[:, 0].double().numpy() * high).astype(np.int64))


def truncate(a: Span, b: Span, limit: int, draw: Draw) -> tuple[Span, Span]:
    """Truncate both to `limit` ids in total: the longer one first, then both alternately, as in BERT.

    The remaining ids are any window of the segment: BERT removes each token from a random end.
    """
    length_a, length_b = truncated_lengths(a.length, b.length, limit)
    return _random_window(a, length_a, "cut a", draw), _random_window(b, length_b, "cut b", draw)


def truncated_lengths(a: Array, b: Array, limit: int) -> tuple[Array, Array]:
    """Return the lengths to which BERT's loop truncates two segments."""
    limit_a = np.where(a + b > limit, np.maximum(limit - b, (limit + 1) // 2), limit)
    length_a = np.minimum(a, limit_a)
    return length_a, np.minimum(b, limit - length_a)


def _random_window(span: Span, length: Array, name: str, draw: Draw) -> Span:
    return Span(span.start + random_below(draw, name, span.length - length + 1), length)


@final
class SegmentLayout:
    """Layout `[cls] A [sep] B [sep]`, or `[cls] A [sep]` alone, padded; `marks` replaces the three special tokens."""

    def __init__(
        self, shape: Shape, vocabulary: Vocabulary, component: str, marks: tuple[str, str, str] = ("cls", "sep", "sep")
    ) -> None:
        if shape.length < MARKS + 2:
            two = f"two {marks[1]}" if marks[1] == marks[2] else f"{marks[1]}, {marks[2]}"
            message = f"{component} needs positions for {marks[0]}, {two} and a token of each segment"
            message += f"; got a length of {shape.length}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=message, valid=f"≥ {MARKS + 2}"))
        self.start, self.separator, self.end = (special_tokens.require(vocabulary, mark, component) for mark in marks)
        self.pad = vocabulary.specials.get("pad", self.end)  # any id serves: no token attends to padding

    def __call__(self, tokens: Tokens, a: Span, b: Span | None, length: int, *, other: Tokens | None = None) -> Stream:
        """(B,) spans -> (B, T); the spans of B refer to `other`, or to `tokens` if that is None."""
        position = np.arange(length)[None, :]
        middle = (1 + a.length)[:, None]
        end = middle if b is None else middle + 1 + b.length[:, None]
        in_second = (position > middle) & (position <= end)
        in_a = (position > 0) & (position < middle)
        ids = _ids_where(tokens, a.start[:, None] + position - 1, in_a, self.pad)
        if b is not None:
            in_b = in_second & (position < end)
            ids = np.where(in_b, _ids_where(other or tokens, b.start[:, None] + position - middle - 1, in_b, 0), ids)
        ids = np.where(position == middle, self.separator, ids)
        ids = np.where(position == end, self.end, ids)
        ids[:, 0] = self.start
        return Stream(
            torch.from_numpy(ids),
            documents=torch.from_numpy(np.where(position > end, PADDING, 0)),
            positions=torch.arange(length).repeat(len(ids), 1),
            segments=torch.from_numpy(in_second.astype(np.int64)),
            languages=_languages(tokens, a, b, position > middle, other or tokens),
            special=torch.from_numpy((position == 0) | (position == middle) | (position >= end)),
        )


def _ids_where(tokens: Tokens, source: Array, mask: Array, fill: int) -> Array:
    """Return the ids at `source` where `mask` is True, and `fill` elsewhere."""
    ids: Array = np.asarray(tokens.ids[np.where(mask, source, 0)], dtype=np.int64)
    return np.where(mask, ids, fill)


def _languages(tokens: Tokens, a: Span, b: Span | None, after_middle: Array, other: Tokens) -> torch.Tensor | None:
    """(B, T): each segment and its special tokens have the language of its document."""
    language_a = _language(tokens, a)
    language_b = language_a if b is None else _language(other, b)
    if language_a is None or language_b is None:
        return None
    return torch.from_numpy(np.where(after_middle, language_b, language_a))


def _language(tokens: Tokens, span: Span) -> Array | None:
    if tokens.languages is None:
        return None
    starts = tokens.sentences[tokens.documents]
    languages: Array = tokens.languages[np.searchsorted(starts, span.start, side="right") - 1][:, None]
    return languages
