"""All documents of a split in one flow of ids, cut into pieces of one length."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch

from paribus.parts.rows import Stream
from paribus.slots.tokenizer import Vocabulary
from paribus.slots.tokens import Tokens

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


def end_mark(vocabulary: Vocabulary) -> int | None:
    """What closes a document, where the tokenizer has such an id."""
    return vocabulary.specials.get("eos", vocabulary.specials.get("sep"))


@final
class Flow:
    """Each document closed by an end mark, one behind the other, each of its own language.

    The flow is never made as a whole: pieces of it are, from ids that may lie on a disk.
    """

    def __init__(self, tokens: Tokens, vocabulary: Vocabulary, *, apart: bool, sentences: bool = False) -> None:
        self.mark = end_mark(vocabulary)
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

    def cut(self, index: Array, length: int) -> Stream:
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
