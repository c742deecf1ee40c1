"""Tokens that are hidden side by side: how long such spans are, where they lie, and what stands around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple, final

import numpy as np

from paribus import Draw, Range, Stream
from paribus_objective.masking import Array, Picked, first, share
from paribus_objective.segments import floored

ROOM = 0.5  # spans lie apart, so there are no more of them than tokens that are left


@dataclass(frozen=True)
class Spans:
    """How tokens are hidden together."""

    longest: Annotated[int, "tokens of a span at most; 1: each by itself (SpanBERT: 10, ALBERT: 3)", Range(1)] = 1
    ends: Annotated[
        float | None,
        "chance that a span ends behind each token (SpanBERT: 0.2); null: one of n is as likely as 1/n (ALBERT)",
        Range(above=0, below=1),
    ] = None
    words: Annotated[bool, "whether a word is hidden whole, and lengths count words (BERT's second version)"] = False
    together: Annotated[bool, "whether one draw decides what is shown for a whole span (SpanBERT: yes)"] = False

    def chances(self) -> Array:
        """(longest,): how likely each length is. What a law has beyond the longest is spread over the others."""
        lengths = np.arange(1, self.longest + 1)
        weights = 1 / lengths if self.ends is None else (1 - self.ends) ** (lengths - 1)
        return np.asarray(weights / weights.sum())


@final
class SpanPicking:
    """Picks spans that do not touch, until there are as many tokens as asked for, of which the last span is cut short.

    A text is laid out as a ring that is turned at random, so every token is as likely to be picked, those at its ends
    included; a span across the ends is cut in two. What is no text, and the end of a document, cuts a span as well.
    """

    def __init__(self, spans: Spans, rate: float) -> None:
        if rate > ROOM:
            raise ValueError(f"`rate` is {rate:g}, but spans that lie apart leave room for no more than {ROOM:g}")
        self.ends = spans.chances().cumsum()[:-1]
        self.together = spans.together

    def __call__(self, outside: Array, stream: Stream, rate: float, most: int, draw: Draw) -> Picked:
        length = outside.shape[1]
        text = length - outside.sum(axis=1)
        hidden = np.minimum(share(text, rate, most, draw), np.maximum(text // 2, 1))
        left = np.arange(most) >= hidden[:, None]
        ring = self._ring(text, hidden, most, length, draw)
        turned = (ring + floored(draw, "turn", text)[:, None]) % np.maximum(text, 1)[:, None]
        rows = np.take_along_axis(_sorted(outside), turned, axis=1)
        chosen = np.zeros((len(text), length + 1), dtype=bool)
        np.put_along_axis(chosen, np.where(left, length, rows), True, axis=1)
        rows = _sorted(~chosen[:, :length])[:, :most]
        return Picked(rows, left, np.maximum(runs(rows, left, stream).number, 0) if self.together else None)

    def lengths(self, count: int, draw: Draw) -> Array:
        """(B, count)."""
        return np.searchsorted(self.ends, draw.uniform("span", count).numpy(), side="right") + 1

    def _ring(self, text: Array, hidden: Array, most: int, length: int, draw: Draw) -> Array:
        """(B, N): where on a ring of `text` tokens those are that are picked, of which there are `hidden`.

        What is not picked stands in a row; each span is put before another one of those, all choices as likely.
        """
        stops = np.minimum(self.lengths(most, draw).cumsum(axis=1), hidden[:, None])
        lengths = np.diff(stops, axis=1, prepend=0)  # (B, N): of the spans, 0 behind the last
        taken = np.arange(length) >= np.maximum(text - hidden, 1)[:, None]
        before = np.where(lengths > 0, first(draw.uniform("gap", length), most, taken), length)
        order = before.argsort(axis=1, kind="stable")
        before, lengths = (np.take_along_axis(each, order, axis=1) for each in (before, lengths))
        begins = np.zeros((len(text), most + 1), dtype=bool)
        np.put_along_axis(begins, lengths.cumsum(axis=1) - lengths, True, axis=1)
        span = begins[:, :most].cumsum(axis=1) - 1  # of each picked token
        return np.take_along_axis(before, np.clip(span, 0, None), axis=1) + np.arange(most)


class Runs(NamedTuple):
    """Of each picked token, (B, N), the run of neighbouring rows that it belongs to; what is left over has none."""

    number: Array  # counted from 0 on; that of what is left over means nothing
    first: Array  # the row that the run begins with
    last: Array


def runs(rows: Array, left: Array, stream: Stream) -> Runs:
    """The runs of picked rows that are in order; a document's end is that of a run."""
    place = np.arange(rows.shape[1])
    joined = np.diff(rows, axis=1) == 1
    if stream.documents is not None:
        joined &= np.diff(np.take_along_axis(stream.documents.numpy(), rows, axis=1), axis=1) == 0
    joined &= ~left[:, 1:]
    begins = np.pad(~joined, ((0, 0), (1, 0)), constant_values=True)
    ends = np.pad(~joined, ((0, 0), (0, 1)), constant_values=True)
    start = np.maximum.accumulate(np.where(begins, place, 0), axis=1)
    stop = np.minimum.accumulate(np.where(ends, place, place[-1])[:, ::-1], axis=1)[:, ::-1]
    return Runs(begins.cumsum(axis=1) - 1, *(np.take_along_axis(rows, end, axis=1) for end in (start, stop)))


class Borders(NamedTuple):
    """What stands around the run of each picked token, (B, N); 0 where something is missing."""

    before: Array  # a row
    behind: Array  # a row
    place: Array  # of the token in its run, from 0 on
    missing: Array  # bool: a place that is left over, or a run with nothing of its document before or behind it


def borders(rows: Array, left: Array, stream: Stream) -> Borders:
    """The rows that a run of picked ones is framed by."""
    found, length = runs(rows, left, stream), stream.tokens.shape[1]
    before, behind = found.first - 1, found.last + 1
    missing = left | (before < 0) | (behind >= length)
    before, behind = np.where(missing, 0, before), np.where(missing, 0, behind)
    if stream.documents is not None:
        own, *framed = (np.take_along_axis(stream.documents.numpy(), each, axis=1) for each in (rows, before, behind))
        missing |= (framed[0] != own) | (framed[1] != own)
    before, behind, place = (np.where(missing, 0, each) for each in (before, behind, rows - found.first))
    return Borders(before, behind, place, missing)


def _sorted(last: Array) -> Array:
    """(B, T) -> (B, T): indices in order, those that are to come last behind the others."""
    return last.argsort(axis=1, kind="stable")  # of booleans this is a radix sort
