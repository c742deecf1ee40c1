"""Whole words that are hidden: what a word is, and how runs of words are picked."""

from __future__ import annotations

from typing import Final, NamedTuple, final

import numpy as np

from paribus import Draw, Problem, SpecError, Stream, Vocabulary
from paribus_objective.masking import Array, Pick, Picked, first, one_by_one, share
from paribus_objective.span_masking import SpanPicking, Spans, runs

UNTOLD: Final = "whole words are to be hidden together, but the tokenizer cannot tell where one begins"


class Words(NamedTuple):
    """The words of some texts, counted from 0 on in each; what is no text belongs to none."""

    number: Array  # (B, T): the word of each token
    text: Array  # (B, T) bool
    bounds: Array  # (B, T + 1): how many tokens the words before this one have, all of them behind the last
    stops: Array  # (B, T): the word behind the stretch of text that this one lies in, which nothing interrupts
    size: Array  # (B,): how many there are


def picking(spans: Spans, rate: float, vocabulary: Vocabulary) -> Pick:
    """How tokens are picked where spans are these, and no more than `rate` of a text."""
    if spans.words:
        return WordPicking(spans, vocabulary)
    return SpanPicking(spans, rate) if spans.longest > 1 else one_by_one


@final
class WordPicking:
    """Picks runs of whole words as the code of BERT and ALBERT does, for all examples at a time.

    Words are asked in a random order whether a run may begin there, of as many words as is drawn for each: it is
    shortened to what there is room for, and left out where there is room for none or a word of it is picked already.
    Where every word is too long for all the room there is, the first that was asked is cut.
    """

    def __init__(self, spans: Spans, vocabulary: Vocabulary) -> None:
        if vocabulary.word_starts is None:
            raise SpecError(Problem(code="no-words", path="tokenizer", message=UNTOLD, valid="`words: false`"))
        self.ends = spans.chances().cumsum()[:-1]
        self.longest, self.together = spans.longest, spans.together
        self.begins = np.zeros(max(vocabulary.size, 1), dtype=bool)
        self.begins[sorted(vocabulary.word_starts)] = True

    def __call__(self, outside: Array, stream: Stream, rate: float, most: int, draw: Draw) -> Picked:
        length = outside.shape[1]
        found = self.words(outside, stream)
        hidden = share(length - outside.sum(axis=1), rate, most, draw)
        chosen = np.take_along_axis(self._chosen(found, hidden, draw), found.number, axis=1) & found.text
        chosen &= chosen.cumsum(axis=1) <= hidden[:, None]  # a word that is cut is longer
        rows = (~chosen).argsort(axis=1, kind="stable")[:, :most]
        left = np.arange(most) >= chosen.sum(axis=1)[:, None]
        return Picked(rows, left, np.maximum(runs(rows, left, stream).number, 0) if self.together else None)

    def words(self, outside: Array, stream: Stream) -> Words:
        """A word begins where its token says so, and behind whatever is no text or of another document."""
        text, length = ~outside, outside.shape[1]
        apart = np.pad(outside[:, :-1], ((0, 0), (1, 0)), constant_values=True)
        if stream.documents is not None:
            apart[:, 1:] |= np.diff(stream.documents.numpy(), axis=1) != 0
        begins = text & (apart | self.begins.take(stream.tokens.numpy(), mode="clip"))
        number = np.maximum(begins.cumsum(axis=1) - 1, 0)
        count = begins.sum(axis=1)
        inside = np.arange(length) < count[:, None]
        start = (~begins).argsort(axis=1, kind="stable")  # (B, T): the row that each word begins with
        behind = np.pad(text.cumsum(axis=1), ((0, 0), (1, 0)))
        bounds = np.where(inside, np.take_along_axis(behind, start, axis=1), behind[:, -1:])
        bounds = np.pad(bounds, ((0, 0), (0, 1)), mode="edge")
        bounds[:, -1] = behind[:, -1]
        first = np.take_along_axis(apart, start, axis=1) & inside  # (B, T): of its stretch
        ahead = np.where(first, np.arange(length), length)
        ahead = np.minimum.accumulate(ahead[:, ::-1], axis=1)[:, ::-1]  # the next one that is first, itself included
        stops = np.minimum(np.pad(ahead[:, 1:], ((0, 0), (0, 1)), constant_values=length), count[:, None])
        return Words(number, text, bounds, stops, count)

    def _chosen(self, words: Words, hidden: Array, draw: Draw) -> Array:
        """(B, T) bool: which words are picked, of which there may be one that is longer than what is `hidden`."""
        examples, length = words.number.shape
        order = first(draw.uniform("pick", length), length, np.arange(length) >= words.size[:, None])
        drawn = np.searchsorted(self.ends, draw.uniform("span", length).numpy(), side="right") + 1
        chosen = np.zeros((examples, length + self.longest), dtype=bool)
        room, open_ = hidden.copy(), np.flatnonzero(hidden > 0)
        for turn in range(length):
            open_ = open_[(room[open_] > 0) & (words.size[open_] > turn)]
            if not len(open_):
                break
            at = order[open_, turn]
            run = at[:, None] + np.arange(self.longest)
            last = np.minimum(at + drawn[open_, turn], words.stops[open_, at])
            tokens = words.bounds[open_[:, None], np.minimum(run + 1, length)] - words.bounds[open_, at][:, None]
            taken = (run < last[:, None]) & (tokens <= room[open_][:, None])
            taken &= ~(chosen[open_[:, None], run] & taken).any(axis=1)[:, None]
            chosen[open_[:, None], run] |= taken
            room[open_] -= np.where(taken, tokens, 0).max(axis=1)
        cut = np.flatnonzero((room == hidden) & (hidden > 0))
        chosen[cut, order[cut, 0]] = True
        return chosen[:, :length]
