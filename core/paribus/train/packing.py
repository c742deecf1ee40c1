"""Whole documents in rows of one length, as many as fit: no row is cut off from where its document begins.

All documents of a split in one flow of ids, cut into pieces of one length.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, final

import numpy as np
import torch

from paribus.parts.batch import PADDING, Stream
from paribus.slots.tokenizer import Vocabulary
from paribus.slots.tokens import Tokens

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


def end_token(vocabulary: Vocabulary) -> int | None:
    """What closes a document, where the tokenizer has such an id."""
    return vocabulary.specials.get("eos", vocabulary.specials.get("sep"))


@final
class ConcatenatedDocuments:
    """Each document closed by an end mark, one behind the other, each of its own language.

    The flow is never made as a whole: pieces of it are, from ids that may lie on a disk.
    """

    def __init__(self, tokens: Tokens, vocabulary: Vocabulary, *, apart: bool, sentences: bool = False) -> None:
        self.mark = end_token(vocabulary)
        ends = np.asarray(tokens.sentences)[np.asarray(tokens.documents)[1:]]
        self.ends = ends if self.mark is None else ends + np.arange(1, len(ends) + 1)
        self.size = int(self.ends[-1]) if len(self.ends) else 0
        self._ids = tokens.ids
        self._apart = apart
        self._languages = tokens.languages
        self._sentences = np.asarray(tokens.sentences)[1:] if sentences else None

    def count(self, length: int) -> int:
        """How many whole pieces there are."""
        return self.size // length

    def examples(self, index: Array, length: int) -> Stream:
        """Pieces number `index` of `length` ids; kept apart by document where that was asked for."""
        places = index[:, None] * length + np.arange(length)[None, :]
        ids, document, source = self._read(places)
        tokens = torch.from_numpy(ids)
        apart = torch.from_numpy(document - document[:, :1]) if self._apart else None
        languages = None if self._languages is None else torch.from_numpy(self._languages[document])
        return Stream(tokens, documents=apart, languages=languages, sentences=self._numbered(source))

    def _numbered(self, source: Array) -> torch.Tensor | None:
        """Which sentence each id is in, counted from the first of its row; an end mark is in the one behind it."""
        if self._sentences is None:
            return None
        number = np.searchsorted(self._sentences, source, side="right")
        return torch.from_numpy(number - number[:, :1])

    def _read(self, places: Array) -> tuple[Array, Array, Array]:
        """(B, N) the ids at successive places of the flow, which document each is of, and where it lies: an end mark
        where the next document begins."""
        if self.mark is None:
            asked = self._apart or self._languages is not None
            document = np.searchsorted(self.ends, places, side="right") if asked else np.zeros_like(places)
            return self._ids[places].astype(np.int64), document, places
        first = np.searchsorted(self.ends, places[:, 0], side="right")
        ending = np.searchsorted(self.ends, places[:, -1] + 1, side="right") - first  # documents that end in each piece
        document = np.repeat(first[:, None], places.shape[1], axis=1)
        touched = np.flatnonzero(ending)  # few: most pieces lie within a document
        marks = np.zeros((len(touched), places.shape[1]), bool)
        if len(touched):
            counts = ending[touched]
            rows = np.repeat(np.arange(len(touched)), counts)
            which = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts - first[touched], counts)
            marks[rows, self.ends[which] - 1 - places[touched, 0][rows]] = True
            document[touched] += marks.cumsum(axis=1) - marks
        source = places - document  # a mark before each but the first, which the ids have not
        ids = self._ids.take(source, mode="clip").astype(np.int64)  # behind the last one is a mark
        if len(touched):
            ids[touched] = np.where(marks, self.mark, ids[touched])
        return ids, document, source


WINDOW: Final = 1 << 18  # pieces that are packed together: what is sorted and held open at a time


class DocumentPieces(NamedTuple):
    """Documents, those that are longer than a row cut into several; an end mark behind each counts."""

    document: Array  # (P,) which one
    start: Array  # (P,) its first place in the flat ids
    length: Array  # (P,)


@final
class PackedDocuments:
    """Rows of documents that do not see each other, each at positions from 0 on, and padding behind them.

    A document longer than a row is cut, and what is left of it is a document of its own. Which pieces share a row
    follows from their lengths alone: best fit, the longest first, over windows of successive documents.
    """

    def __init__(
        self, tokens: Tokens, vocabulary: Vocabulary, length: int, *, window: int = WINDOW, sentences: bool = False
    ) -> None:
        self.mark = end_token(vocabulary)
        self.length = length
        self._pad = vocabulary.specials.get("pad", self.mark or 0)  # no row sees it, whatever it is
        self._ids = tokens.ids
        self._ends = np.asarray(tokens.sentences)[np.asarray(tokens.documents)[1:]]
        self._languages = tokens.languages
        self._sentences = np.asarray(tokens.sentences)[1:] if sentences else None
        found = split_documents(tokens, length, marked=self.mark is not None)
        row = pack_lengths(found.length, length, window)
        order = np.argsort(row, kind="stable")
        self._pieces = DocumentPieces(*(vector[order] for vector in found))
        self._rows = np.concatenate(([0], np.cumsum(np.bincount(row)))) if len(row) else np.zeros(1, np.int64)
        self.count = len(self._rows) - 1

    @property
    def fill(self) -> float:
        """Which share of all rows is text."""
        return float(self._pieces.length.sum() / (self.count * self.length)) if self.count else 1.0

    def examples(self, index: Array) -> Stream:
        """Rows number `index`."""
        counts = self._rows[index + 1] - self._rows[index]
        row = np.repeat(np.arange(len(index)), counts)
        number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)  # of a piece in its row
        piece = self._rows[index][row] + number
        lengths = self._pieces.length[piece]
        before = np.cumsum(lengths) - lengths
        begins = before - before[number == 0][row]  # where in its row each piece does
        positions = np.arange(lengths.sum()) - np.repeat(before, lengths)
        at = np.repeat(row, lengths), np.repeat(begins, lengths) + positions
        source = np.repeat(self._pieces.start[piece], lengths) + positions
        ids = self._ids[np.minimum(source, len(self._ids) - 1)].astype(np.int64)
        if self.mark is not None:
            ids[source == np.repeat(self._ends[self._pieces.document[piece]], lengths)] = self.mark

        def filled(value: Array, rest: Array | int) -> torch.Tensor:
            whole = np.empty((len(index), self.length), np.int64)
            whole[:] = rest
            whole[at] = value
            return torch.from_numpy(whole)

        ramp = np.arange(self.length)[None, :] - begins[np.cumsum(counts) - 1][:, None]  # runs on behind the last piece
        languages = None
        if self._languages is not None:
            languages = filled(np.repeat(self._languages[self._pieces.document[piece]], lengths), 0)
        numbered = None
        if self._sentences is not None:  # an end mark is one of its own, as is each piece of a sentence
            owner = np.searchsorted(self._sentences, source, side="right")
            new = (np.diff(owner, prepend=-1) != 0) | (positions == 0)
            count = new.cumsum()
            numbered = filled(count - count[before[number == 0]][at[0]], 0)
        return Stream(
            filled(ids, self._pad),
            documents=filled(np.repeat(number, lengths), PADDING),
            positions=filled(positions, ramp),
            languages=languages,
            sentences=numbered,
        )


def split_documents(tokens: Tokens, most: int, *, marked: bool) -> DocumentPieces:
    """The documents in order, cut where they are longer than `most`."""
    bounds = np.asarray(tokens.sentences)[np.asarray(tokens.documents)]
    sizes = np.diff(bounds) + marked
    counts = -(-sizes // most)
    document = np.repeat(np.arange(len(sizes)), counts)
    offset = (np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)) * most
    return DocumentPieces(document, bounds[:-1][document] + offset, np.minimum(sizes[document] - offset, most))


def pack_lengths(lengths: Array, most: int, window: int = WINDOW) -> Array:
    """(P,) -> (P,): the row of each piece, rows numbered from 0 on in each window behind those of the one before."""
    rows = np.empty(len(lengths), np.int64)
    first = 0
    for start in range(0, len(lengths), window):
        part = lengths[start : start + window]
        rows[start : start + window] = first + _fitted(part, most)
        first = int(rows[start : start + window].max()) + 1
    return rows


def _fitted(lengths: Array, most: int) -> Array:
    """The row of each piece of one window.

    All pieces of one length are placed together: the work is by lengths, of which there are few, not by pieces.
    """
    order = np.argsort(-lengths, kind="stable")
    rows = np.empty(len(lengths), np.int64)
    room: dict[int, list[int]] = {}  # rows by how much is free in them
    free = 0  # bit r is set where there is a row with room for r
    made = at = 0
    for length, count in zip(*(found[::-1].tolist() for found in np.unique(lengths, return_counts=True)), strict=True):
        left = count
        while left:
            fits = free >> length
            size = most
            if fits:
                size = length + (fits & -fits).bit_length() - 1  # the smallest that is large enough
                taken = room[size][:left]
                del room[size][:left]
                if not room[size]:
                    free &= ~(1 << size)
            else:
                new = -(-left // (most // length))
                taken = list(range(made, made + new))
                made += new
            rows[order[at : at + len(taken)]] = taken
            at += len(taken)
            left -= len(taken)
            room.setdefault(size - length, []).extend(taken)
            free |= 1 << (size - length)
    return rows
