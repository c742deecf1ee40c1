"""Pairs of segments, `[cls] A [sep] B [sep]`: where they lie in a corpus, and how they become streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch

from paribus import PADDING, DataError, Draw, Problem, Shape, SpecError, Stream, Tokens, Vocabulary
from paribus_objective import specials

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]

MARKS = 3  # cls, and a sep behind each segment


class Span(NamedTuple):
    """One run of ids an example: `start` is its first place in the flat ids, (B,), and `length` how many there are."""

    start: Array
    length: Array


@final
@dataclass(frozen=True)
class Pairs:
    """Every chunk of a corpus that can be split into two segments: consecutive sentences of one document."""

    bounds: Array  # sentence i is ids[bounds[i] : bounds[i + 1]]; none is empty
    documents: Array  # document d has the sentences documents[d] up to documents[d + 1]; none is empty
    first: Array  # (chunks,) the first sentence of each chunk
    last: Array  # (chunks,) the sentence after its last one

    def lengths(self, most: int) -> Array:
        """(chunks,) how many of `most` rows each takes, marks and all."""
        sizes: Array = self.bounds[self.last] - self.bounds[self.first] + MARKS
        return sizes.clip(max=most)

    def split(self, draw: Draw) -> tuple[Span, Span]:
        """The chunks `draw.index`, each split between two of its sentences, every place being as likely."""
        first, last = self.first[draw.index.numpy()], self.last[draw.index.numpy()]
        middle = first + 1 + floored(draw, "split", last - first - 1)
        return self.span(first, middle), self.span(middle, last)

    def elsewhere(self, a: Span, b: Span, draw: Draw) -> Span:
        """For each `b` a segment of another document, any of the others being as likely, from a random sentence on.

        It is at least as long as `b` where its document is: else the length of a pair would tell what it is.
        """
        starts = self.bounds[self.documents[:-1]]
        own = np.searchsorted(starts, a.start, side="right") - 1
        other = floored(draw, "document", np.full_like(own, len(starts) - 1))
        other += other >= own
        begin, end = self.documents[other], self.documents[other + 1]
        latest = np.searchsorted(self.bounds, self.bounds[end] - b.length, side="right")
        first = begin + floored(draw, "sentence", np.maximum(latest - begin, 1))
        last = np.searchsorted(self.bounds, self.bounds[first] + b.length, side="left")
        return self.span(first, np.minimum(last, end))

    def span(self, first: Array, last: Array) -> Span:
        return Span(self.bounds[first], self.bounds[last] - self.bounds[first])


@final
class Index:
    """The pairs of each corpus that was asked about, found once. Copies and other processes start without any.

    Chunks are cut for `rows` at least: a batch of shorter ones is of the same.
    """

    def __init__(self, who: str, documents: int, rows: int = 0) -> None:
        self.who = who
        self.documents = documents  # how many it takes at least
        self.rows = rows
        self._found: dict[tuple[int, int], tuple[Tokens, Pairs]] = {}

    def __reduce__(self) -> tuple[type[Index], tuple[str, int, int]]:
        return Index, (self.who, self.documents, self.rows)

    def __call__(self, tokens: Tokens, length: int) -> Pairs:
        length = max(length, self.rows)
        key = (id(tokens), length)
        if key not in self._found:  # the tokens are kept with what was found, so that nobody else gets their id
            self._found[key] = (tokens, self._checked(pairs(tokens, length - MARKS)))
        return self._found[key][1]

    def _checked(self, found: Pairs) -> Pairs:
        documents = len(found.documents) - 1
        if documents < self.documents:
            what = f"{self.who} takes its negatives from another document, but the corpus has {documents}"
            raise DataError(
                Problem(code="too-few-documents", path="corpus", message=what, valid="at least 2 documents")
            )
        if not len(found.first):
            what = f"{self.who} pairs consecutive sentences, but no document has two"
            raise DataError(
                Problem(
                    code="too-few-sentences", path="corpus", message=what, valid="a document of at least 2 sentences"
                )
            )
        return found


def pairs(tokens: Tokens, budget: int) -> Pairs:
    """A corpus in chunks: sentences until there are `budget` tokens, two at least, or until their document ends."""
    full = np.flatnonzero(np.diff(tokens.sentences) > 0)
    bounds = np.append(np.asarray(tokens.sentences, dtype=np.int64)[full], tokens.sentences[-1])
    documents = np.unique(np.searchsorted(full, tokens.documents))  # an empty document starts where the next one does
    ends = np.repeat(documents[1:], np.diff(documents))
    after = np.maximum(np.searchsorted(bounds, bounds[:-1] + budget, side="left"), np.arange(len(ends)) + 2)
    after = np.minimum(after, ends)
    first, at = [], 0
    while at < len(after):
        first.append(at)
        at = int(after[at])
    chunks = np.array(first, dtype=np.int64)
    chunks = chunks[after[chunks] - chunks >= 2]
    return Pairs(bounds, documents, chunks, after[chunks])


def floored(draw: Draw, name: str, high: Array) -> Array:
    """(B,) in [0, high), for a `high` of each example's own, below 2^24."""
    return np.asarray((draw.uniform(name, 1)[:, 0].double().numpy() * high).astype(np.int64))


def truncated(a: Span, b: Span, most: int, draw: Draw) -> tuple[Span, Span]:
    """Both cut to `most` ids together: the longer one first, and evenly once they are equal, as in BERT.

    What is kept lies anywhere in the segment: BERT flips a coin for each token between the two ends.
    """
    kept_a, kept_b = halved(a.length, b.length, most)
    return _cut(a, kept_a, "cut a", draw), _cut(b, kept_b, "cut b", draw)


def halved(a: Array, b: Array, most: int) -> tuple[Array, Array]:
    """The lengths to which BERT's loop cuts two segments."""
    half = np.where(a + b > most, np.maximum(most - b, (most + 1) // 2), most)
    kept = np.minimum(a, half)
    return kept, np.minimum(b, most - kept)


def _cut(span: Span, kept: Array, name: str, draw: Draw) -> Span:
    return Span(span.start + floored(draw, name, span.length - kept + 1), kept)


@final
class Layout:
    """`[cls] A [sep] B [sep]`, or `[cls] A [sep]` alone, and padding up to the length; with other `marks`, others."""

    def __init__(
        self, shape: Shape, vocabulary: Vocabulary, who: str, marks: tuple[str, str, str] = ("cls", "sep", "sep")
    ) -> None:
        if shape.length < MARKS + 2:
            two = f"two {marks[1]}" if marks[1] == marks[2] else f"{marks[1]}, {marks[2]}"
            what = f"{who} needs rows for {marks[0]}, {two} and a token of each segment, but there are {shape.length}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=what, valid=f"≥ {MARKS + 2}"))
        self.first, self.between, self.last = (specials.needed(vocabulary, mark, who) for mark in marks)
        self.pad = vocabulary.specials.get("pad", self.last)  # no row sees it, whatever it is

    def __call__(self, tokens: Tokens, a: Span, b: Span | None, length: int, *, other: Tokens | None = None) -> Stream:
        """(B,) spans -> (B, T); those of B are of `other`, if that is given."""
        place = np.arange(length)[None, :]
        middle = (1 + a.length)[:, None]
        end = middle if b is None else middle + 1 + b.length[:, None]
        second = (place > middle) & (place <= end)
        ids = _taken(tokens, a.start[:, None] + place - 1, (place > 0) & (place < middle), self.pad)
        if b is not None:
            own = second & (place < end)
            ids = np.where(own, _taken(other or tokens, b.start[:, None] + place - middle - 1, own, 0), ids)
        ids = np.where(place == middle, self.between, ids)
        ids = np.where(place == end, self.last, ids)
        ids[:, 0] = self.first
        return Stream(
            torch.from_numpy(ids),
            documents=torch.from_numpy(np.where(place > end, PADDING, 0)),
            positions=torch.arange(length).repeat(len(ids), 1),
            segments=torch.from_numpy(second.astype(np.int64)),
            languages=_languages(tokens, a, b, place > middle, other or tokens),
            special=torch.from_numpy((place == 0) | (place == middle) | (place >= end)),
        )


def _taken(tokens: Tokens, source: Array, wanted: Array, filled: int) -> Array:
    """The ids of some places, where they are wanted."""
    ids: Array = np.asarray(tokens.ids[np.where(wanted, source, 0)], dtype=np.int64)
    return np.where(wanted, ids, filled)


def _languages(tokens: Tokens, a: Span, b: Span | None, behind: Array, other: Tokens) -> torch.Tensor | None:
    """(B, T): each segment lies in one document, whose language its marks are of as well."""
    own = _language(tokens, a)
    theirs = own if b is None else _language(other, b)
    if own is None or theirs is None:
        return None
    return torch.from_numpy(np.where(behind, theirs, own))


def _language(tokens: Tokens, span: Span) -> Array | None:
    if tokens.languages is None:
        return None
    starts = tokens.sentences[tokens.documents]
    found: Array = tokens.languages[np.searchsorted(starts, span.start, side="right") - 1][:, None]
    return found
