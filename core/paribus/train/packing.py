"""Whole documents in rows of one length, as many as fit: no row is cut off from where its document begins."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, final

import numpy as np
import torch

from paribus.parts.rows import PADDING, Stream
from paribus.slots.tokenizer import Vocabulary
from paribus.slots.tokens import Tokens
from paribus.train.flow import end_mark

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]

WINDOW: Final = 1 << 18  # pieces that are packed together: what is sorted and held open at a time


class Pieces(NamedTuple):
    """Documents, those that are longer than a row cut into several; an end mark behind each counts."""

    document: Array  # (P,) which one
    start: Array  # (P,) its first place in the flat ids
    length: Array  # (P,)


@final
class Packed:
    """Rows of documents that do not see each other, each at positions from 0 on, and padding behind them.

    A document longer than a row is cut, and what is left of it is a document of its own. Which pieces share a row
    follows from their lengths alone: best fit, the longest first, over windows of successive documents.
    """

    def __init__(
        self, tokens: Tokens, vocabulary: Vocabulary, length: int, *, window: int = WINDOW, sentences: bool = False
    ) -> None:
        self.mark = end_mark(vocabulary)
        self.length = length
        self._pad = vocabulary.specials.get("pad", self.mark or 0)  # no row sees it, whatever it is
        self._ids = tokens.ids
        self._ends = np.asarray(tokens.sentences)[np.asarray(tokens.documents)[1:]]
        self._languages = tokens.languages
        self._sentences = np.asarray(tokens.sentences)[1:] if sentences else None
        found = pieces(tokens, length, marked=self.mark is not None)
        row = packed(found.length, length, window)
        order = np.argsort(row, kind="stable")
        self._pieces = Pieces(*(vector[order] for vector in found))
        self._rows = np.concatenate(([0], np.cumsum(np.bincount(row)))) if len(row) else np.zeros(1, np.int64)
        self.count = len(self._rows) - 1

    @property
    def fill(self) -> float:
        """Which share of all rows is text."""
        return float(self._pieces.length.sum() / (self.count * self.length)) if self.count else 1.0

    def cut(self, index: Array) -> Stream:
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


def pieces(tokens: Tokens, most: int, *, marked: bool) -> Pieces:
    """The documents in order, cut where they are longer than `most`."""
    bounds = np.asarray(tokens.sentences)[np.asarray(tokens.documents)]
    sizes = np.diff(bounds) + marked
    counts = -(-sizes // most)
    document = np.repeat(np.arange(len(sizes)), counts)
    offset = (np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)) * most
    return Pieces(document, bounds[:-1][document] + offset, np.minimum(sizes[document] - offset, most))


def packed(lengths: Array, most: int, window: int = WINDOW) -> Array:
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
