"""Noise spans of T5: how many, where they start, and the split of a text into the corrupted input and the target."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from paribus import Draw
from paribus_objective.encoder_decoder import Side
from paribus_objective.masking import smallest

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


class NoiseSize(NamedTuple):
    """Number of noise tokens and spans; it depends only on the length of the text, so all examples have one size."""

    tokens: int
    spans: int


def noise_size(length: int, rate: float, mean_span: float) -> NoiseSize:
    """T5's rule: the noise is rounded, between one token and all but one; each span needs a gap beside it."""
    tokens = min(max(round(length * rate), 1), length - 1)
    return NoiseSize(tokens, min(max(round(tokens / mean_span), 1), tokens, length - tokens))


def side_lengths(length: int, size: NoiseSize) -> tuple[int, int]:
    """Return the lengths of the input and the target: each has a sentinel per span, and an end mark."""
    return length - size.tokens + size.spans + 1, size.tokens + size.spans + 1


def noise_mask(length: int, size: NoiseSize, draw: Draw) -> tuple[Array, Array]:
    """Return the noise tokens and the first tokens of noise spans; (B, T) bool each.

    Text and noise alternate, text first and noise last; all ways to split either into `size.spans` are equally likely.
    """
    text = random_partition(length - size.tokens, size.spans, "text spans", draw)
    noise = random_partition(size.tokens, size.spans, "noise spans", draw)
    span_ends = np.stack([text, noise], axis=2).reshape(len(text), -1).cumsum(axis=1)  # (B, 2 * spans)
    starts = np.zeros((len(text), length), dtype=bool)
    np.put_along_axis(starts, span_ends[:, :-1], True, axis=1)
    is_noise = (starts.cumsum(axis=1) & 1).astype(bool)
    return is_noise, starts & is_noise


def random_partition(length: int, count: int, name: str, draw: Draw) -> Array:
    """(B, count) random lengths, each at least 1, that sum to `length`."""
    cuts = smallest(draw.uniform(name, length - 1), count - 1) + 1  # in random order
    ends = np.pad(np.sort(cuts, axis=1), ((0, 0), (1, 1)))
    ends[:, -1] = length
    return np.diff(ends, axis=1)


def corrupt_spans(tokens: Array, size: NoiseSize, sentinels: Array, draw: Draw) -> tuple[Side, Side]:
    """Split each text, (B, n), into the text without noise and the noise, with a sentinel per span on both sides."""
    is_noise, noise_starts = noise_mask(tokens.shape[1], size, draw)
    text_starts = np.roll(noise_starts, -1, axis=1)  # no text starts with noise, so nothing wraps around
    inputs, input_origins = replace_spans(tokens, is_noise, noise_starts, sentinels)
    labels, label_origins = replace_spans(tokens, ~is_noise, text_starts, sentinels)
    # A sentinel belongs to the document of the span that follows it.
    label_origins += np.take_along_axis(text_starts, label_origins, axis=1)
    return Side(inputs, input_origins), Side(labels, label_origins)


def replace_spans(tokens: Array, removed: Array, span_starts: Array, sentinels: Array) -> tuple[Array, Array]:
    """Return the tokens that are not `removed`, with a sentinel at each of `span_starts`, and their original positions;
    (B, N) each. N must be the same for every example."""
    examples, positions = np.nonzero(~removed | span_starts)
    shape = (len(tokens), -1)
    number = np.where(span_starts, span_starts.cumsum(axis=1) - 1, 0)
    replaced = np.where(span_starts, sentinels[number], tokens)
    return replaced[examples, positions].reshape(shape), positions.reshape(shape)
