"""What BART does to texts: sentences and whole documents are put in another order, spans are filled in, tokens go.

A stretch is a run of text that no special token, no padding and no other document interrupts. All that happens, happens
within one: what is no text stays where it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple, final

import numpy as np

from paribus import Draw, Range, Stream
from paribus_objective.masking import Array, first, share
from paribus_objective.two_sides import Side

TAIL = 1e-9  # how likely a span is at most to be longer than any that is drawn


@dataclass(frozen=True)
class Infilling:
    """Spans that a single mask token takes the place of; one of none is a mask before a token."""

    rate: Annotated[float, "share of a text's tokens that lie in them (BART: 0.3)", Range(0, 0.5)] = 0.3
    mean_span: Annotated[float, "tokens of a span, on average, by Poisson's law", Range(1, 64)] = 3.0

    def chances(self) -> Array:
        """How likely each length is, from 0 on."""
        found, left = [math.exp(-self.mean_span)], 1.0
        while left > TAIL:
            left -= found[-1]
            found.append(found[-1] * self.mean_span / len(found))
        return np.array(found) / sum(found)


class Stretches(NamedTuple):
    """Of each row, (B, T), the stretch that it lies in; what is no text is a stretch of its own."""

    number: Array
    start: Array
    length: Array


def stretches(outside: Array, stream: Stream) -> Stretches:
    rows = np.arange(outside.shape[1])
    begins = np.ones_like(outside)
    begins[:, 1:] = outside[:, 1:] | outside[:, :-1]
    if stream.documents is not None:
        begins[:, 1:] |= np.diff(stream.documents.numpy(), axis=1) != 0
    start = np.maximum.accumulate(np.where(begins, rows, 0), axis=1)
    ends = np.pad(begins[:, 1:], ((0, 0), (0, 1)), constant_values=True)
    end = np.minimum.accumulate(np.where(ends, rows + 1, len(rows))[:, ::-1], axis=1)[:, ::-1]
    return Stretches(begins.cumsum(axis=1) - 1, start, end - start)


def permuted(stream: Stream, outside: Array, of: Stretches, rate: float, draw: Draw) -> Array:
    """(B, T): which row stands in each row's place, when a `rate` of the sentences of each text change places among
    themselves."""
    begins = of.start == np.arange(outside.shape[1])
    if stream.sentences is not None:
        begins[:, 1:] |= np.diff(stream.sentences.numpy(), axis=1) != 0
    number = begins.cumsum(axis=1) - 1
    most = int(number.max(initial=0)) + 1
    each = np.arange(most)
    at = (~begins).argsort(axis=1, kind="stable")[:, :most]  # the row that each sentence begins with
    text = (each <= number[:, -1:]) & ~np.take_along_axis(outside, at, axis=1)
    among = np.take_along_axis(of.number, at, axis=1)
    count = np.floor(text.sum(axis=1) * rate + draw.uniform("sentences", 1)[:, 0].numpy()).astype(np.int64)
    moved = np.zeros(text.shape, dtype=bool)
    chosen = first(draw.uniform("sentence", most), most, ~text)
    np.put_along_axis(moved, chosen, each < np.minimum(count, text.sum(axis=1))[:, None], axis=1)
    last = outside.shape[1] + each  # behind all that are moved
    places = np.where(moved, each, last).argsort(axis=1, kind="stable")
    luck = draw.uniform("place", most).double().numpy()
    others = np.where(moved, among + luck, last).argsort(axis=1, kind="stable")
    place = np.empty_like(places)
    np.put_along_axis(place, others, places, axis=1)  # of each sentence, where it goes
    return np.take_along_axis(place, number, axis=1).argsort(axis=1, kind="stable")


def rotated(of: Stretches, rate: float, draw: Draw) -> Array:
    """(B, T): which row stands in each row's place, when a `rate` of the stretches begin with a token drawn from them,
    and what stood before it comes behind the rest."""
    length = of.start.shape[1]
    turns = np.take_along_axis(draw.uniform("turns", length).numpy(), of.start, axis=1) < rate
    luck = np.take_along_axis(draw.uniform("pivot", length).double().numpy(), of.start, axis=1)
    pivot = np.where(turns, (luck * of.length).astype(np.int64), 0)
    return of.start + (np.arange(length) - of.start + pivot) % of.length


class Holes(NamedTuple):
    """What is missing of texts, and where a mask token stands for it."""

    gone: Array  # (B, T) bool
    marks: Array  # (B, T) bool: a mask stands before this row


@final
class Filling:
    """Picks spans that do not touch, until there are as many tokens as asked for, of which the last is cut short.

    A span that something interrupts is two, with a mask for each. There are no more masks than tokens that they stand
    for, so no text grows.
    """

    def __init__(self, infilling: Infilling) -> None:
        self.rate = infilling.rate
        self.ends = infilling.chances().cumsum()[:-1]

    def __call__(self, outside: Array, of: Stretches, draw: Draw) -> Holes:
        length = outside.shape[1]
        text = length - outside.sum(axis=1)
        if not self.rate:
            return Holes(np.zeros_like(outside), np.zeros_like(outside))
        rows = outside.argsort(axis=1, kind="stable")  # (B, T): of each token of the text, counted without the rest
        rows = np.where(np.arange(length) < text[:, None], rows, length)
        begin, size = self._laid(text, share(text, self.rate, length, draw), length, draw)
        # In rows of the text alone, and two more: behind its last, and for what is not there.
        starts, stops = (np.zeros((len(text), length + 2), dtype=np.int64) for _ in range(2))
        np.put_along_axis(starts, np.where(size > 0, begin, length + 1), 1, axis=1)
        np.put_along_axis(stops, np.where(size > 0, begin + size, length + 1), 1, axis=1)
        inside = (starts - stops).cumsum(axis=1)[:, :length] > 0
        gone, marks = (np.zeros((len(text), length + 1), dtype=bool) for _ in range(2))
        np.put_along_axis(gone, np.where(inside, rows, length), True, axis=1)
        np.put_along_axis(marks, np.where(starts[:, :length] > 0, rows, length), True, axis=1)
        gone, marks = gone[:, :length], marks[:, :length]
        marks |= gone & (of.start == np.arange(length))
        spare = gone.sum(axis=1) - marks.sum(axis=1)
        none = (size == 0) & (begin < text[:, None])
        example, span = np.nonzero(none & (none.cumsum(axis=1) <= spare[:, None]))
        marks[example, rows[example, begin[example, span]]] = True
        return Holes(gone, marks)

    def _laid(self, text: Array, hidden: Array, length: int, draw: Draw) -> tuple[Array, Array]:
        """(B, N): which token of the text each span begins before, and how many it has; -1 for what is no span.

        Lengths are drawn until there are `hidden` tokens, and each span is put before another of those that are left.
        """
        most = min(2 * int(hidden.max(initial=0)) + 8, length + 1)
        lengths = np.searchsorted(self.ends, draw.uniform("infilled", most).numpy(), side="right")
        stops = np.minimum(lengths.cumsum(axis=1), hidden[:, None])
        size = np.diff(stops, axis=1, prepend=0)
        left = (text - hidden)[:, None]
        there = (stops - size < hidden[:, None]) & (np.arange(most) <= left)
        gaps = first(draw.uniform("gap", length + 1), most, np.arange(length + 1) > left)
        gaps = np.where(there, gaps, 2 * length + 2)
        order = gaps.argsort(axis=1, kind="stable")
        there, size, gaps = (np.take_along_axis(each, order, axis=1) for each in (there, size, gaps))
        size = np.where(there, size, 0)
        return np.where(there, gaps + size.cumsum(axis=1) - size, -1), np.where(there, size, -1)


def picked(free: Array, text: Array, rate: float, name: str, draw: Draw) -> Array:
    """(B, T) bool: `rate` of `text` tokens, of those that are `free`."""
    length = free.shape[1]
    count = np.floor(text * rate + draw.uniform(f"{name} share", 1)[:, 0].numpy()).astype(np.int64)
    found = np.zeros_like(free)
    chosen = first(draw.uniform(name, length), length, ~free)
    np.put_along_axis(found, chosen, np.arange(length) < np.minimum(count, free.sum(axis=1))[:, None], axis=1)
    return found


def woven(tokens: Array, order: Array, holes: Holes, mask: int) -> Side:
    """The tokens in an order, (B, T), without those that are gone, and with masks where these stand: as long as the
    longest may be."""
    kept = ~holes.gone
    ends = (kept.astype(np.int64) + holes.marks).cumsum(axis=1)
    before = ends - kept - holes.marks
    out, places = np.zeros((2, *tokens.shape), dtype=np.int64)
    r, c = np.nonzero(holes.marks)
    out[r, before[r, c]] = mask
    places[r, before[r, c]] = order[r, c]
    r, c = np.nonzero(kept)
    at = before[r, c] + holes.marks[r, c]
    out[r, at] = np.take_along_axis(tokens, order, axis=1)[r, c]
    places[r, at] = order[r, c]
    return Side(out, places, ends[:, -1])
