"""Whole-word masking: word boundaries, and the selection of runs of words."""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np

from paribus import Draw, Problem, SpecError, Stream, Vocabulary
from paribus_objective.masking import Array, Select, Selection, select_single_tokens, selected_count, smallest
from paribus_objective.span_masking import Spans, SpanSelection, runs


class Words(NamedTuple):
    """The words of each text, numbered from 0; special tokens and padding belong to none."""

    number: Array  # (B, T): the word of each token
    text: Array  # (B, T) bool: whether the token is text
    bounds: Array  # (B, T + 1): number of tokens before each word; after the last word, all of them
    stops: Array  # (B, T): the word after the uninterrupted stretch of text that the word lies in
    total: Array  # (B,): number of words


def selection(spans: Spans, rate: float, vocabulary: Vocabulary) -> Select:
    """Return the selection of tokens for these spans and at most `rate` of a text."""
    if spans.whole_words:
        return WordSelection(spans, vocabulary)
    return SpanSelection(spans, rate) if spans.max_length > 1 else select_single_tokens


@final
class WordSelection:
    """Selection of runs of whole words, as in the code of BERT and ALBERT, vectorized over examples.

    Words are visited in random order, each as the start of a run of a random number of words. A run is shortened to the
    remaining room, and skipped if no word fits or one of its words is already selected. If every word of a text is too
    long, the first visited is truncated.
    """

    def __init__(self, spans: Spans, vocabulary: Vocabulary) -> None:
        if vocabulary.word_starts is None:
            message = "whole-word masking needs a tokenizer that marks the starts of words"
            raise SpecError(
                Problem(code="missing-words", path="tokenizer", message=message, valid="`whole_words: false`")
            )
        self.length_cdf = spans.length_probabilities().cumsum()[:-1]
        self.max_length, self.joint_replacement = spans.max_length, spans.joint_replacement
        self.word_starts = np.zeros(max(vocabulary.size, 1), dtype=bool)
        self.word_starts[sorted(vocabulary.word_starts)] = True

    def __call__(self, non_text: Array, stream: Stream, rate: float, slots: int, draw: Draw) -> Selection:
        length = non_text.shape[1]
        words = self.words(non_text, stream)
        count = selected_count(length - non_text.sum(axis=1), rate, slots, draw)
        selected = np.take_along_axis(self._selected_words(words, count, draw), words.number, axis=1) & words.text
        selected &= selected.cumsum(axis=1) <= count[:, None]  # truncates a word that is too long
        positions = (~selected).argsort(axis=1, kind="stable")[:, :slots]
        unused = np.arange(slots) >= selected.sum(axis=1)[:, None]
        groups = np.maximum(runs(positions, unused, stream).number, 0) if self.joint_replacement else None
        return Selection(positions, unused, groups)

    def words(self, non_text: Array, stream: Stream) -> Words:
        """Return the words; one starts at each word-start token, and after special tokens and document boundaries."""
        text, length = ~non_text, non_text.shape[1]
        is_interrupted = np.pad(non_text[:, :-1], ((0, 0), (1, 0)), constant_values=True)
        if stream.documents is not None:
            is_interrupted[:, 1:] |= np.diff(stream.documents.numpy(), axis=1) != 0
        starts = text & (is_interrupted | self.word_starts.take(stream.tokens.numpy(), mode="clip"))
        number = np.maximum(starts.cumsum(axis=1) - 1, 0)
        count = starts.sum(axis=1)
        exists = np.arange(length) < count[:, None]
        first_token = (~starts).argsort(axis=1, kind="stable")  # (B, T): position of the first token of each word
        tokens_before = np.pad(text.cumsum(axis=1), ((0, 0), (1, 0)))
        bounds = np.where(exists, np.take_along_axis(tokens_before, first_token, axis=1), tokens_before[:, -1:])
        bounds = np.pad(bounds, ((0, 0), (0, 1)), mode="edge")
        bounds[:, -1] = tokens_before[:, -1]
        starts_stretch = np.take_along_axis(is_interrupted, first_token, axis=1) & exists
        next_stretch = np.where(starts_stretch, np.arange(length), length)
        next_stretch = np.minimum.accumulate(next_stretch[:, ::-1], axis=1)[:, ::-1]  # from the word itself on
        stops = np.pad(next_stretch[:, 1:], ((0, 0), (0, 1)), constant_values=length)
        return Words(number, text, bounds, np.minimum(stops, count[:, None]), count)

    def _selected_words(self, words: Words, count: Array, draw: Draw) -> Array:
        """(B, T) bool: the selected words, with `count` tokens at most unless a single word has more."""
        examples, length = words.number.shape
        order = smallest(draw.uniform("pick", length), length, np.arange(length) >= words.total[:, None])
        run_lengths = np.searchsorted(self.length_cdf, draw.uniform("span", length).numpy(), side="right") + 1
        selected = np.zeros((examples, length + self.max_length), dtype=bool)
        room, active = count.copy(), np.flatnonzero(count > 0)
        for step in range(length):
            active = active[(room[active] > 0) & (words.total[active] > step)]
            if not len(active):
                break
            start = order[active, step]
            run = start[:, None] + np.arange(self.max_length)
            stop = np.minimum(start + run_lengths[active, step], words.stops[active, start])
            tokens = words.bounds[active[:, None], np.minimum(run + 1, length)] - words.bounds[active, start][:, None]
            added = (run < stop[:, None]) & (tokens <= room[active][:, None])
            added &= ~(selected[active[:, None], run] & added).any(axis=1)[:, None]
            selected[active[:, None], run] |= added
            room[active] -= np.where(added, tokens, 0).max(axis=1)
        empty = np.flatnonzero((room == count) & (count > 0))
        selected[empty, order[empty, 0]] = True
        return selected[:, :length]
