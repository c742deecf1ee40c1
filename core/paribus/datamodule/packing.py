"""Examples of one length from documents: concatenated and divided, or packed whole."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, final

import numpy as np
import torch

from paribus.parts.batch import PADDING, Stream
from paribus.slots.corpus import Tokens
from paribus.slots.tokenizer import Vocabulary

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


@final
class ConcatenatedDocuments:
    """Concatenated documents, each followed by an end token, divided into examples of one length.

    Examples are read from ids that may be memory-mapped; the concatenation is never made as a whole.
    """

    def __init__(self, tokens: Tokens, vocabulary: Vocabulary, *, apart: bool, sentences: bool = False) -> None:
        self.mark = vocabulary.end_token
        ends = np.asarray(tokens.sentences)[np.asarray(tokens.documents)[1:]]
        self.ends = ends if self.mark is None else ends + np.arange(1, len(ends) + 1)
        self.size = int(self.ends[-1]) if len(self.ends) else 0
        self._ids = tokens.ids
        self._apart = apart
        self._languages = tokens.languages
        self._sentences = np.asarray(tokens.sentences)[1:] if sentences else None

    def count(self, length: int) -> int:
        """Return the number of examples of this length."""
        return self.size // length

    def examples(self, index: Array, length: int) -> Stream:
        """Return the examples with these numbers, with document numbers if documents are kept apart."""
        places = index[:, None] * length + np.arange(length)[None, :]
        ids, document, source = self._read(places)
        tokens = torch.from_numpy(ids)
        apart = torch.from_numpy(document - document[:, :1]) if self._apart else None
        languages = None if self._languages is None else torch.from_numpy(self._languages[document])
        return Stream(tokens, documents=apart, languages=languages, sentences=self._numbered(source))

    def _numbered(self, source: Array) -> torch.Tensor | None:
        """Return the sentence number of each id, from 0 in each example; an end token counts to the next sentence."""
        if self._sentences is None:
            return None
        number = np.searchsorted(self._sentences, source, side="right")
        return torch.from_numpy(number - number[:, :1])

    def _read(self, places: Array) -> tuple[Array, Array, Array]:
        """Return the ids at these places of the concatenation, their document numbers, and their places in the ids.

        All are (B, N). An end token has the place of the next document's first id."""
        if self.mark is None:
            needs_documents = self._apart or self._languages is not None
            document = np.searchsorted(self.ends, places, side="right") if needs_documents else np.zeros_like(places)
            return self._ids[places].astype(np.int64), document, places
        first_document = np.searchsorted(self.ends, places[:, 0], side="right")
        ending = (
            np.searchsorted(self.ends, places[:, -1] + 1, side="right") - first_document
        )  # documents that end in each example
        document = np.repeat(first_document[:, None], places.shape[1], axis=1)
        with_end = np.flatnonzero(ending)  # few: most examples lie within a document
        marks = np.zeros((len(with_end), places.shape[1]), bool)
        if len(with_end):
            counts = ending[with_end]
            rows = np.repeat(np.arange(len(with_end)), counts)
            ended = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts - first_document[with_end], counts)
            marks[rows, self.ends[ended] - 1 - places[with_end, 0][rows]] = True
            document[with_end] += marks.cumsum(axis=1) - marks
        source = places - document  # the ids do not contain the end tokens before it
        ids = self._ids.take(source, mode="clip").astype(np.int64)  # the last place may be an end token
        if len(with_end):
            ids[with_end] = np.where(marks, self.mark, ids[with_end])
        return ids, document, source


WINDOW: Final = 1 << 18  # pieces that are sorted and packed together


class DocumentPieces(NamedTuple):
    """Documents, divided where they are longer than an example; lengths include end tokens."""

    document: Array  # (P,) document number
    start: Array  # (P,) place of the first token in the ids
    length: Array  # (P,)


@final
class PackedDocuments:
    """Examples of whole documents that do not attend to each other, with positions from 0 and padding at the end.

    A document longer than an example is divided, and its parts count as documents. Pieces are packed by length alone:
    best fit, the longest first, over windows of successive documents.
    """

    def __init__(
        self, tokens: Tokens, vocabulary: Vocabulary, length: int, *, window: int = WINDOW, sentences: bool = False
    ) -> None:
        self.mark = vocabulary.end_token
        self.length = length
        self._pad = vocabulary.specials.get("pad", self.mark or 0)  # masked, whatever its value
        self._ids = tokens.ids
        self._ends = np.asarray(tokens.sentences)[np.asarray(tokens.documents)[1:]]
        self._languages = tokens.languages
        self._sentences = np.asarray(tokens.sentences)[1:] if sentences else None
        documents = split_documents(tokens, length, marked=self.mark is not None)
        row = pack_lengths(documents.length, length, window)
        order = np.argsort(row, kind="stable")
        self._pieces = DocumentPieces(*(vector[order] for vector in documents))
        self._rows = np.concatenate(([0], np.cumsum(np.bincount(row)))) if len(row) else np.zeros(1, np.int64)
        self.count = len(self._rows) - 1

    @property
    def fill(self) -> float:
        """Fraction of all positions with text."""
        return float(self._pieces.length.sum() / (self.count * self.length)) if self.count else 1.0

    def examples(self, index: Array) -> Stream:
        """Return the examples with these numbers."""
        counts = self._rows[index + 1] - self._rows[index]
        row = np.repeat(np.arange(len(index)), counts)
        number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)  # of a piece in its example
        piece = self._rows[index][row] + number
        lengths = self._pieces.length[piece]
        offset = np.cumsum(lengths) - lengths
        start = offset - offset[number == 0][row]  # of each piece in its example
        positions = np.arange(lengths.sum()) - np.repeat(offset, lengths)
        place = np.repeat(row, lengths), np.repeat(start, lengths) + positions
        source = np.repeat(self._pieces.start[piece], lengths) + positions
        ids = self._ids[np.minimum(source, len(self._ids) - 1)].astype(np.int64)
        if self.mark is not None:
            ids[source == np.repeat(self._ends[self._pieces.document[piece]], lengths)] = self.mark

        def filled(value: Array, rest: Array | int) -> torch.Tensor:
            whole = np.empty((len(index), self.length), np.int64)
            whole[:] = rest
            whole[place] = value
            return torch.from_numpy(whole)

        ramp = np.arange(self.length)[None, :] - start[np.cumsum(counts) - 1][:, None]  # continues after the last piece
        languages = None
        if self._languages is not None:
            languages = filled(np.repeat(self._languages[self._pieces.document[piece]], lengths), 0)
        numbered = None
        if (
            self._sentences is not None
        ):  # an end token is a sentence of its own, and so is each part of a divided sentence
            owner = np.searchsorted(self._sentences, source, side="right")
            new = (np.diff(owner, prepend=-1) != 0) | (positions == 0)
            count = new.cumsum()
            numbered = filled(count - count[offset[number == 0]][place[0]], 0)
        return Stream(
            filled(ids, self._pad),
            documents=filled(np.repeat(number, lengths), PADDING),
            positions=filled(positions, ramp),
            languages=languages,
            sentences=numbered,
        )


def split_documents(tokens: Tokens, max_length: int, *, marked: bool) -> DocumentPieces:
    """Return the documents in order, divided where they are longer than `max_length`."""
    bounds = np.asarray(tokens.sentences)[np.asarray(tokens.documents)]
    sizes = np.diff(bounds) + marked
    counts = -(-sizes // max_length)
    document = np.repeat(np.arange(len(sizes)), counts)
    offset = (np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)) * max_length
    return DocumentPieces(document, bounds[:-1][document] + offset, np.minimum(sizes[document] - offset, max_length))


def pack_lengths(lengths: Array, max_length: int, window: int = WINDOW) -> Array:
    """(P,) -> (P,): return the example of each piece; numbers continue from window to window."""
    rows = np.empty(len(lengths), np.int64)
    next_example = 0
    for start in range(0, len(lengths), window):
        part = lengths[start : start + window]
        rows[start : start + window] = next_example + _best_fit(part, max_length)
        next_example = int(rows[start : start + window].max()) + 1
    return rows


def _best_fit(lengths: Array, max_length: int) -> Array:
    """Return the example of each piece of one window.

    All pieces of one length are placed together, which is fast, since there are few different lengths.
    """
    order = np.argsort(-lengths, kind="stable")
    rows = np.empty(len(lengths), np.int64)
    room: dict[int, list[int]] = {}  # examples by their free space
    free = 0  # bit r is set if an example has room for r
    example_count = start = 0
    for length, count in zip(
        *(values[::-1].tolist() for values in np.unique(lengths, return_counts=True)), strict=True
    ):
        remaining = count
        while remaining:
            fits = free >> length
            size = max_length
            if fits:
                size = length + (fits & -fits).bit_length() - 1  # the smallest that is large enough
                taken = room[size][:remaining]
                del room[size][:remaining]
                if not room[size]:
                    free &= ~(1 << size)
            else:
                new = -(-remaining // (max_length // length))
                taken = list(range(example_count, example_count + new))
                example_count += new
            rows[order[start : start + len(taken)]] = taken
            start += len(taken)
            remaining -= len(taken)
            room.setdefault(size - length, []).extend(taken)
            free |= 1 << (size - length)
    return rows
