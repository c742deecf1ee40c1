"""Noise of BART: sentence permutation, document rotation, text infilling, token masking and token deletion.

A stretch is a run of text that is not interrupted by a special token, padding or the start of another document. Noise
acts within a stretch; special tokens and padding keep their positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple, final

import numpy as np

from paribus import Draw, Range, Stream
from paribus_objective.encoder_decoder import Side
from paribus_objective.masking import Array, selected_count, smallest

TAIL = 1e-9  # upper bound on the probability of a span that is longer than any that is drawn


@dataclass(frozen=True)
class Infilling:
    """Replacement of each span by one mask token; an empty span inserts a mask token."""

    rate: Annotated[float, "share of the text's tokens that lie in spans (BART: 0.3)", Range(0, 0.5)] = 0.3
    mean_span: Annotated[float, "mean length of a span; Poisson distributed", Range(1, 64)] = 3.0

    def length_probabilities(self) -> Array:
        """Probability of each length, from 0 on."""
        probabilities, remaining = [math.exp(-self.mean_span)], 1.0
        while remaining > TAIL:
            remaining -= probabilities[-1]
            probabilities.append(probabilities[-1] * self.mean_span / len(probabilities))
        return np.array(probabilities) / sum(probabilities)


class Stretches(NamedTuple):
    """The stretch of each token, (B, T); a special token or padding is a stretch of its own."""

    number: Array
    start: Array
    length: Array


def stretches(non_text: Array, stream: Stream) -> Stretches:
    positions = np.arange(non_text.shape[1])
    is_start = np.ones_like(non_text)
    is_start[:, 1:] = non_text[:, 1:] | non_text[:, :-1]
    if stream.documents is not None:
        is_start[:, 1:] |= np.diff(stream.documents.numpy(), axis=1) != 0
    start = np.maximum.accumulate(np.where(is_start, positions, 0), axis=1)
    is_end = np.pad(is_start[:, 1:], ((0, 0), (0, 1)), constant_values=True)
    end = np.minimum.accumulate(np.where(is_end, positions + 1, len(positions))[:, ::-1], axis=1)[:, ::-1]
    return Stretches(is_start.cumsum(axis=1) - 1, start, end - start)


def permute_sentences(stream: Stream, non_text: Array, stretch: Stretches, rate: float, draw: Draw) -> Array:
    """(B, T): source position of each output token, if a share `rate` of the sentences of each text is permuted."""
    is_start = stretch.start == np.arange(non_text.shape[1])
    if stream.sentences is not None:
        is_start[:, 1:] |= np.diff(stream.sentences.numpy(), axis=1) != 0
    sentence = is_start.cumsum(axis=1) - 1  # of each token
    maximum = int(sentence.max(initial=0)) + 1
    numbers = np.arange(maximum)
    first_token = (~is_start).argsort(axis=1, kind="stable")[:, :maximum]  # of each sentence
    is_text = (numbers <= sentence[:, -1:]) & ~np.take_along_axis(non_text, first_token, axis=1)
    stretch_number = np.take_along_axis(stretch.number, first_token, axis=1)
    rounded = np.floor(is_text.sum(axis=1) * rate + draw.uniform("sentences", 1)[:, 0].numpy()).astype(np.int64)
    is_moved = np.zeros(is_text.shape, dtype=bool)
    chosen = smallest(draw.uniform("sentence", maximum), maximum, ~is_text)
    np.put_along_axis(is_moved, chosen, numbers < np.minimum(rounded, is_text.sum(axis=1))[:, None], axis=1)
    unmoved_keys = non_text.shape[1] + numbers  # sort after all that are moved
    targets = np.where(is_moved, numbers, unmoved_keys).argsort(axis=1, kind="stable")
    shuffle_keys = draw.uniform("place", maximum).double().numpy()
    sources = np.where(is_moved, stretch_number + shuffle_keys, unmoved_keys).argsort(axis=1, kind="stable")
    destination = np.empty_like(targets)
    np.put_along_axis(destination, sources, targets, axis=1)  # of each sentence
    return np.take_along_axis(destination, sentence, axis=1).argsort(axis=1, kind="stable")


def rotate_stretches(stretch: Stretches, rate: float, draw: Draw) -> Array:
    """(B, T): source position of each output token, if a share `rate` of the stretches is rotated to start with a
    random token."""
    length = stretch.start.shape[1]
    is_rotated = np.take_along_axis(draw.uniform("turns", length).numpy(), stretch.start, axis=1) < rate
    fraction = np.take_along_axis(draw.uniform("pivot", length).double().numpy(), stretch.start, axis=1)
    pivot = np.where(is_rotated, (fraction * stretch.length).astype(np.int64), 0)
    return stretch.start + (np.arange(length) - stretch.start + pivot) % stretch.length


class Holes(NamedTuple):
    """Deleted tokens, and the mask tokens inserted for them."""

    deleted: Array  # (B, T) bool
    masks: Array  # (B, T) bool: a mask token is inserted before this position


@final
class SpanInfilling:
    """Selection of spans that do not touch, until enough tokens are selected; the last span is truncated.

    A span that is interrupted is two spans with a mask each. There are at most as many masks as deleted tokens, so no
    text gets longer.
    """

    def __init__(self, infilling: Infilling) -> None:
        self.rate = infilling.rate
        self.length_cdf = infilling.length_probabilities().cumsum()[:-1]

    def __call__(self, non_text: Array, stretch: Stretches, draw: Draw) -> Holes:
        length = non_text.shape[1]
        text_length = length - non_text.sum(axis=1)
        if not self.rate:
            return Holes(np.zeros_like(non_text), np.zeros_like(non_text))
        positions = non_text.argsort(axis=1, kind="stable")  # (B, T): of each token of the text
        positions = np.where(np.arange(length) < text_length[:, None], positions, length)
        start, size = self._spans(text_length, selected_count(text_length, self.rate, length, draw), length, draw)
        # Indexed by tokens of the text, and two more: one after its last, and one for unused slots.
        starts, stops = (np.zeros((len(text_length), length + 2), dtype=np.int64) for _ in range(2))
        np.put_along_axis(starts, np.where(size > 0, start, length + 1), 1, axis=1)
        np.put_along_axis(stops, np.where(size > 0, start + size, length + 1), 1, axis=1)
        is_inside = (starts - stops).cumsum(axis=1)[:, :length] > 0
        deleted, masks = (np.zeros((len(text_length), length + 1), dtype=bool) for _ in range(2))
        np.put_along_axis(deleted, np.where(is_inside, positions, length), True, axis=1)
        np.put_along_axis(masks, np.where(starts[:, :length] > 0, positions, length), True, axis=1)
        deleted, masks = deleted[:, :length], masks[:, :length]
        masks |= deleted & (stretch.start == np.arange(length))
        spare = deleted.sum(axis=1) - masks.sum(axis=1)
        is_empty = (size == 0) & (start < text_length[:, None])
        example, span = np.nonzero(is_empty & (is_empty.cumsum(axis=1) <= spare[:, None]))
        masks[example, positions[example, start[example, span]]] = True
        return Holes(deleted, masks)

    def _spans(self, text_length: Array, count: Array, length: int, draw: Draw) -> tuple[Array, Array]:
        """(B, N): the token of the text that each span starts before, and its length; -1 in unused slots.

        Lengths are drawn until they sum to `count`, and each span is inserted before a different remaining token.
        """
        slots = min(2 * int(count.max(initial=0)) + 8, length + 1)
        lengths = np.searchsorted(self.length_cdf, draw.uniform("infilled", slots).numpy(), side="right")
        stops = np.minimum(lengths.cumsum(axis=1), count[:, None])
        size = np.diff(stops, axis=1, prepend=0)
        remaining = (text_length - count)[:, None]
        is_used = (stops - size < count[:, None]) & (np.arange(slots) <= remaining)
        gaps = smallest(draw.uniform("gap", length + 1), slots, np.arange(length + 1) > remaining)
        gaps = np.where(is_used, gaps, 2 * length + 2)
        order = gaps.argsort(axis=1, kind="stable")
        is_used, size, gaps = (np.take_along_axis(values, order, axis=1) for values in (is_used, size, gaps))
        size = np.where(is_used, size, 0)
        return np.where(is_used, gaps + size.cumsum(axis=1) - size, -1), np.where(is_used, size, -1)


def random_tokens(available: Array, text_length: Array, rate: float, name: str, draw: Draw) -> Array:
    """(B, T) bool: `rate` of `text_length` tokens, chosen from the `available` ones."""
    length = available.shape[1]
    count = np.floor(text_length * rate + draw.uniform(f"{name} share", 1)[:, 0].numpy()).astype(np.int64)
    mask = np.zeros_like(available)
    chosen = smallest(draw.uniform(name, length), length, ~available)
    np.put_along_axis(mask, chosen, np.arange(length) < np.minimum(count, available.sum(axis=1))[:, None], axis=1)
    return mask


def apply_holes(tokens: Array, order: Array, holes: Holes, mask_id: int) -> Side:
    """Return the tokens in `order`, (B, T), without the deleted ones and with mask tokens inserted; padded to T."""
    remaining = ~holes.deleted
    ends = (remaining.astype(np.int64) + holes.masks).cumsum(axis=1)
    starts = ends - remaining - holes.masks
    output, origins = np.zeros((2, *tokens.shape), dtype=np.int64)
    example, position = np.nonzero(holes.masks)
    output[example, starts[example, position]] = mask_id
    origins[example, starts[example, position]] = order[example, position]
    example, position = np.nonzero(remaining)
    target = starts[example, position] + holes.masks[example, position]
    output[example, target] = np.take_along_axis(tokens, order, axis=1)[example, position]
    origins[example, target] = order[example, position]
    return Side(output, origins, ends[:, -1])
