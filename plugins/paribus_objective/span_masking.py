"""Span masking: lengths and positions of contiguous masked spans, and the tokens around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple, final

import numpy as np

from paribus import Draw, Range, Stream
from paribus_objective.masking import Array, Selection, selected_count, smallest
from paribus_objective.segments import random_below

MAXIMUM_RATE = 0.5  # spans do not touch, so there are at most as many as tokens that are not masked


@dataclass(frozen=True)
class Spans:
    """Masking of contiguous tokens."""

    max_length: Annotated[int, "maximum length of a span; 1: single tokens (SpanBERT: 10, ALBERT: 3)", Range(1)] = 1
    stop_probability: Annotated[
        float | None,
        "probability of a span to end after each token (SpanBERT: 0.2); null: a length n has weight 1/n (ALBERT)",
        Range(above=0, below=1),
    ] = None
    whole_words: Annotated[bool, "mask whole words, and count lengths in words (BERT's second version)"] = False
    joint_replacement: Annotated[
        bool, "replace all tokens of a span alike: by mask, random or original tokens (SpanBERT: yes)"
    ] = False

    def length_probabilities(self) -> Array:
        """(max_length,): probability of each length; the truncated tail is spread over all lengths."""
        lengths = np.arange(1, self.max_length + 1)
        weights = 1 / lengths if self.stop_probability is None else (1 - self.stop_probability) ** (lengths - 1)
        return np.asarray(weights / weights.sum())


@final
class SpanSelection:
    """Selection of spans that do not touch, until enough tokens are selected; the last span is truncated.

    A text is a ring that is rotated at random, so every token is equally likely to be selected, including the first and
    the last; a span across the ends is split. Special tokens and the end of a document split a span as well.
    """

    def __init__(self, spans: Spans, rate: float) -> None:
        if rate > MAXIMUM_RATE:
            raise ValueError(f"expected `rate` ≤ {MAXIMUM_RATE:g} for spans, which do not touch; got {rate:g}")
        self.length_cdf = spans.length_probabilities().cumsum()[:-1]
        self.joint_replacement = spans.joint_replacement

    def __call__(self, non_text: Array, stream: Stream, rate: float, slots: int, draw: Draw) -> Selection:
        length = non_text.shape[1]
        text_length = length - non_text.sum(axis=1)
        count = np.minimum(selected_count(text_length, rate, slots, draw), np.maximum(text_length // 2, 1))
        unused = np.arange(slots) >= count[:, None]
        ring = self._ring(text_length, count, slots, length, draw)
        offset = random_below(draw, "turn", text_length)[:, None]
        rotated = (ring + offset) % np.maximum(text_length, 1)[:, None]
        positions = np.take_along_axis(_false_first(non_text), rotated, axis=1)
        selected = np.zeros((len(text_length), length + 1), dtype=bool)
        np.put_along_axis(selected, np.where(unused, length, positions), True, axis=1)
        positions = _false_first(~selected[:, :length])[:, :slots]
        groups = np.maximum(runs(positions, unused, stream).number, 0) if self.joint_replacement else None
        return Selection(positions, unused, groups)

    def lengths(self, count: int, draw: Draw) -> Array:
        """(B, count) random span lengths."""
        return np.searchsorted(self.length_cdf, draw.uniform("span", count).numpy(), side="right") + 1

    def _ring(self, text_length: Array, count: Array, slots: int, length: int, draw: Draw) -> Array:
        """(B, N): positions of the `count` selected tokens on a ring of `text_length` tokens.

        Each span is inserted before a different unselected token; all choices are equally likely.
        """
        ends = np.minimum(self.lengths(slots, draw).cumsum(axis=1), count[:, None])
        lengths = np.diff(ends, axis=1, prepend=0)  # (B, N): of the spans, 0 after the last
        excluded = np.arange(length) >= np.maximum(text_length - count, 1)[:, None]
        gaps = np.where(lengths > 0, smallest(draw.uniform("gap", length), slots, excluded), length)
        order = gaps.argsort(axis=1, kind="stable")
        gaps, lengths = (np.take_along_axis(values, order, axis=1) for values in (gaps, lengths))
        starts = np.zeros((len(text_length), slots + 1), dtype=bool)
        np.put_along_axis(starts, lengths.cumsum(axis=1) - lengths, True, axis=1)
        span = starts[:, :slots].cumsum(axis=1) - 1  # of each selected token
        return np.take_along_axis(gaps, np.clip(span, 0, None), axis=1) + np.arange(slots)


class Runs(NamedTuple):
    """The run of adjacent selected positions of each selected token, (B, N); undefined in unused slots."""

    number: Array  # from 0
    first_position: Array
    last_position: Array


def runs(positions: Array, unused: Array, stream: Stream) -> Runs:
    """Return the runs of sorted positions; the end of a document ends a run."""
    slot = np.arange(positions.shape[1])
    is_joined = np.diff(positions, axis=1) == 1
    if stream.documents is not None:
        is_joined &= np.diff(np.take_along_axis(stream.documents.numpy(), positions, axis=1), axis=1) == 0
    is_joined &= ~unused[:, 1:]
    is_start = np.pad(~is_joined, ((0, 0), (1, 0)), constant_values=True)
    is_end = np.pad(~is_joined, ((0, 0), (0, 1)), constant_values=True)
    first_slot = np.maximum.accumulate(np.where(is_start, slot, 0), axis=1)
    last_slot = np.minimum.accumulate(np.where(is_end, slot, slot[-1])[:, ::-1], axis=1)[:, ::-1]
    number = is_start.cumsum(axis=1) - 1
    return Runs(number, *(np.take_along_axis(positions, edge, axis=1) for edge in (first_slot, last_slot)))


class Boundaries(NamedTuple):
    """The tokens next to the run of each selected token, (B, N); 0 where either is missing."""

    left: Array  # position
    right: Array  # position
    offset: Array  # of the token in its run, from 0
    missing: Array  # bool: an unused slot, or a run without a token of its document on both sides


def boundaries(positions: Array, unused: Array, stream: Stream) -> Boundaries:
    """Return the boundary tokens of the runs of selected positions."""
    run, length = runs(positions, unused, stream), stream.tokens.shape[1]
    left, right = run.first_position - 1, run.last_position + 1
    missing = unused | (left < 0) | (right >= length)
    left, right = np.where(missing, 0, left), np.where(missing, 0, right)
    if stream.documents is not None:
        documents = stream.documents.numpy()
        document = np.take_along_axis(documents, positions, axis=1)
        for side in (left, right):
            missing = missing | (np.take_along_axis(documents, side, axis=1) != document)
    left, right, offset = (np.where(missing, 0, values) for values in (left, right, positions - run.first_position))
    return Boundaries(left, right, offset, missing)


def _false_first(last: Array) -> Array:
    """(B, T) -> (B, T): indices of the False entries in order, then those of the True ones."""
    return last.argsort(axis=1, kind="stable")  # for booleans, a radix sort
