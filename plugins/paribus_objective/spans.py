"""Which spans of a text are noise, and the two sides that it falls into: what is left of it, and what was taken."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from paribus import Draw
from paribus_objective.masking import first
from paribus_objective.two_sides import Side

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


class Amount(NamedTuple):
    """How much of a text is noise: a function of its length alone, so that every example has one size."""

    noise: int
    spans: int


def amount(length: int, rate: float, mean_span: float) -> Amount:
    """T5's: noise is rounded, at least one token and not all of them; spans are no more than there are gaps for."""
    noise = min(max(round(length * rate), 1), length - 1)
    return Amount(noise, min(max(round(noise / mean_span), 1), noise, length - noise))


def sides(length: int, of: Amount) -> tuple[int, int]:
    """The lengths of both sides: a sentinel a span on each, and an end mark."""
    return length - of.noise + of.spans + 1, of.noise + of.spans + 1


def spans(length: int, of: Amount, draw: Draw) -> tuple[Array, Array]:
    """Which tokens are noise, and which of these begin a span; (B, T) bool each.

    Text and noise take turns, text first and noise last; all ways to cut either into `of.spans` are as likely.
    """
    text = parts(length - of.noise, of.spans, "text spans", draw)
    noise = parts(of.noise, of.spans, "noise spans", draw)
    turns = np.stack([text, noise], axis=2).reshape(len(text), -1).cumsum(axis=1)  # (B, 2 * spans): where each ends
    begins = np.zeros((len(text), length), dtype=bool)
    np.put_along_axis(begins, turns[:, :-1], True, axis=1)
    noisy = (begins.cumsum(axis=1) & 1).astype(bool)
    return noisy, begins & noisy


def parts(length: int, count: int, name: str, draw: Draw) -> Array:
    """(B, count) lengths, each at least 1, that sum to `length`."""
    cuts = first(draw.uniform(name, length - 1), count - 1) + 1  # in a random order
    ends = np.pad(np.sort(cuts, axis=1), ((0, 0), (1, 1)))
    ends[:, -1] = length
    return np.diff(ends, axis=1)


def apart(tokens: Array, of: Amount, sentinels: Array, draw: Draw) -> tuple[Side, Side]:
    """What is left of each text, (B, n), and what was taken out of it, with a sentinel for each span on both sides."""
    noisy, begins = spans(tokens.shape[1], of, draw)
    ends = np.roll(begins, -1, axis=1)  # of the text between: no row begins in noise, so nothing comes around
    inputs, from_ = folded(tokens, noisy, begins, sentinels)
    labels, to = folded(tokens, ~noisy, ends, sentinels)
    to += np.take_along_axis(ends, to, axis=1)  # a sentinel belongs to the document of the span behind it
    return Side(inputs, from_), Side(labels, to)


def folded(tokens: Array, gone: Array, marks: Array, sentinels: Array) -> tuple[Array, Array]:
    """What is left of each row, (B, N), without the tokens that are `gone`, a sentinel in the place of each of `marks`;
    and where in the row it was, (B, N). Every row must give as many."""
    rows, places = np.nonzero(~gone | marks)
    shape = (len(tokens), -1)
    number = np.where(marks, marks.cumsum(axis=1) - 1, 0)
    left = np.where(marks, sentinels[number], tokens)
    return left[rows, places].reshape(shape), places.reshape(shape)
