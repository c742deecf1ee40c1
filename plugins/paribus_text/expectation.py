"""How a unigram language model of pieces is learned: all ways to cut each word at once, and the pieces fewer and fewer.

The library learns such models as well, but adds up what it counts in an order that differs from run to run, and with it
the pieces: here the same words give the same pieces to the bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

LONGEST: Final = 16  # letters of a piece
READ: Final = 32  # letters of a word that is learned from: the product of so many odds is no 0 yet
SEEDS: Final = 8  # times as many pieces as asked for are there at first
KEPT: Final = 0.75  # share of the pieces that a round leaves
ROUNDS: Final = 2  # of expectation and maximisation, before each pruning
MARGIN: Final = 1.1  # times as many pieces as asked for are there at last, of which the most frequent stay
RARE: Final = 0.5  # a piece that is expected less often goes


def learned(words: Mapping[str, int], letters: Sequence[str], size: int) -> list[tuple[str, float]]:
    """At most `size` pieces with the logarithms of their odds, the likeliest first: all the letters, and what with them
    makes the words, so often seen, most likely ("Subword Regularization", Kudo 2018, section 3.2)."""
    pieces = _seeds(words, letters, SEEDS * size)
    read = {word: count for word, count in words.items() if len(word) <= READ and set(word) <= set(letters)}
    lattice = _Lattice(sorted(read), pieces)
    weights = np.array([read[word] for word in sorted(read)], float)
    single = np.array([len(piece) == 1 for piece in pieces])
    inside = _Lattice(pieces, pieces, whole=False)
    odds = np.full(len(pieces), 1 / len(pieces))
    alive = np.ones(len(pieces), bool)
    while True:
        for _ in range(ROUNDS):
            counts = lattice.expected(odds, weights)
            alive &= single | (counts >= RARE)
            counts = np.where(alive, np.where(single, np.maximum(counts, RARE), counts), 0)
            odds = counts / counts.sum()
        left = int(alive.sum())
        if left <= MARGIN * size:
            break
        lost = np.full(len(pieces), -np.inf)
        logs = _log(odds)
        lost[alive] = counts[alive] * (logs - inside.best(logs))[alive]
        lost[single] = np.inf
        alive = _most(lost, max(int(MARGIN * size), int(KEPT * left))) & alive
        odds = np.where(alive, odds, 0)
    alive = _most(np.where(single, np.inf, counts), min(size, left)) & alive
    logs = _log(counts / counts[alive].sum())
    found = [(piece, round(float(logs[at]), 6)) for at, piece in enumerate(pieces) if alive[at]]
    return sorted(found, key=lambda each: (-each[1], each[0]))


def _most(worth: Array, count: int) -> Array:
    """Which are the so many of the highest worth; of two that are alike, the one that comes first."""
    found = np.zeros(len(worth), bool)
    found[np.argsort(-worth, kind="stable")[:count]] = True
    return found


def _seeds(words: Mapping[str, int], letters: Sequence[str], most: int) -> list[str]:
    """The letters, and of all stretches of words that come twice those that cover most of the text."""
    counts: Counter[str] = Counter()
    known = set(letters)
    for word, count in words.items():
        for start in range(len(word)):
            for end in range(start + 2, min(start + LONGEST, len(word)) + 1):
                counts[word[start:end]] += count
    ranked = sorted(
        (-count * len(piece), piece) for piece, count in counts.items() if count > 1 and known >= set(piece)
    )
    return sorted({*letters, *(piece for _, piece in ranked[: max(0, most - len(letters))])})


class _Edges(NamedTuple):
    """The pieces of words that begin, or end, behind so many of their letters."""

    starts: Array
    ends: Array
    pieces: Array


@final
class _Lattice:
    """All the ways to cut words into pieces: places between letters, one behind the other, and pieces from one to
    another."""

    def __init__(self, words: Sequence[str], pieces: Sequence[str], *, whole: bool = True) -> None:
        number = {piece: at for at, piece in enumerate(pieces)}
        first = np.cumsum([0, *(len(word) + 1 for word in words)], dtype=np.int64)
        found: list[tuple[int, int, int, int]] = []
        for word, begin in zip(words, first.tolist(), strict=False):
            length = len(word)
            for start in range(length):
                for end in range(start + 1, min(start + LONGEST, length) + 1):
                    at = number.get(word[start:end])
                    if at is not None and (whole or end - start < length):
                        found.append((start, begin + start, begin + end, at))
        edges = np.array(found, np.int64).reshape(-1, 4)
        order = np.argsort(edges[:, 0], kind="stable")
        bounds = np.searchsorted(edges[order, 0], np.arange(max(map(len, words), default=0) + 1))
        self._steps = [_Edges(*edges[order[low:high], 1:].T) for low, high in pairwise(bounds)]
        self._first, self._last, self._places = first[:-1], first[1:] - 1, int(first[-1])
        self._pieces = len(pieces)

    def expected(self, odds: Array, weights: Array) -> Array:
        """(P,), (W,) -> (P,): how often each piece is met in words that are seen so often, by the odds of all cuts."""
        before, behind = np.zeros(self._places), np.zeros(self._places)
        before[self._first] = 1
        behind[self._last] = 1
        for step in self._steps:
            np.add.at(before, step.ends, before[step.starts] * odds[step.pieces])
        for step in reversed(self._steps):
            np.add.at(behind, step.starts, behind[step.ends] * odds[step.pieces])
        whole = before[self._last]
        share = np.zeros(self._places)
        share[self._first] = np.divide(weights, whole, out=np.zeros_like(weights), where=whole > 0)
        share = np.repeat(share[self._first], self._last - self._first + 1)
        counts = np.zeros(self._pieces)
        for step in self._steps:
            met = before[step.starts] * odds[step.pieces] * behind[step.ends] * share[step.starts]
            np.add.at(counts, step.pieces, met)
        return counts

    def best(self, log_odds: Array) -> Array:
        """(P,) -> (W,): the logarithm of the odds of each word's likeliest cut."""
        found = np.full(self._places, -np.inf)
        found[self._first] = 0
        for step in self._steps:
            np.maximum.at(found, step.ends, found[step.starts] + log_odds[step.pieces])
        return np.asarray(found[self._last])


def _log(odds: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(odds))
