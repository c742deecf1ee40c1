"""Training of a unigram language model of word pieces, by expectation maximization and pruning.

The library trains such models as well, but sums counts in an order that differs between runs, and so do its pieces:
here the same words give bitwise the same pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MAX_PIECE_LENGTH: Final = 16
MAX_WORD_LENGTH: Final = 32  # the product of so many probabilities does not underflow
SEED_FACTOR: Final = 8  # initial pieces for each piece of the result
RETAINED_SHARE: Final = 0.75  # of the pieces, after each pruning
ROUNDS: Final = 2  # of expectation and maximization before each pruning
MARGIN: Final = 1.1  # final pieces for each piece of the result, which are the most frequent
MINIMUM_COUNT: Final = 0.5  # expected count below which a piece is removed


def train_unigram(words: Mapping[str, int], letters: Sequence[str], size: int) -> list[tuple[str, float]]:
    """Return at most `size` pieces with their log-probabilities, the most probable first: all letters, and the pieces
    that maximize the likelihood of the words ("Subword Regularization", Kudo 2018, section 3.2)."""
    pieces = _seeds(words, letters, SEED_FACTOR * size)
    alphabet = set(letters)
    training = {word: count for word, count in words.items() if len(word) <= MAX_WORD_LENGTH and set(word) <= alphabet}
    lattice = _Lattice(sorted(training), pieces)
    weights = np.array([training[word] for word in sorted(training)], float)
    is_letter = np.array([len(piece) == 1 for piece in pieces])
    piece_lattice = _Lattice(pieces, pieces, allow_whole=False)
    probabilities = np.full(len(pieces), 1 / len(pieces))
    is_alive = np.ones(len(pieces), bool)
    while True:
        for _ in range(ROUNDS):
            counts = lattice.expected_counts(probabilities, weights)
            is_alive &= is_letter | (counts >= MINIMUM_COUNT)
            counts = np.where(is_alive, np.where(is_letter, np.maximum(counts, MINIMUM_COUNT), counts), 0)
            probabilities = counts / counts.sum()
        remaining = int(is_alive.sum())
        if remaining <= MARGIN * size:
            break
        losses = np.full(len(pieces), -np.inf)
        logs = _log(probabilities)
        losses[is_alive] = counts[is_alive] * (logs - piece_lattice.best_scores(logs))[is_alive]
        losses[is_letter] = np.inf
        is_alive = _top(losses, max(int(MARGIN * size), int(RETAINED_SHARE * remaining))) & is_alive
        probabilities = np.where(is_alive, probabilities, 0)
    is_alive = _top(np.where(is_letter, np.inf, counts), min(size, remaining)) & is_alive
    logs = _log(counts / counts[is_alive].sum())
    scored = [(piece, round(float(logs[number]), 6)) for number, piece in enumerate(pieces) if is_alive[number]]
    return sorted(scored, key=lambda entry: (-entry[1], entry[0]))


def _top(values: Array, count: int) -> Array:
    """Return a mask of the `count` largest values; ties go to the first."""
    mask = np.zeros(len(values), bool)
    mask[np.argsort(-values, kind="stable")[:count]] = True
    return mask


def _seeds(words: Mapping[str, int], letters: Sequence[str], limit: int) -> list[str]:
    """Return the letters, and of the substrings that occur twice those that cover most of the text."""
    counts: Counter[str] = Counter()
    alphabet = set(letters)
    for word, count in words.items():
        for start in range(len(word)):
            for end in range(start + 2, min(start + MAX_PIECE_LENGTH, len(word)) + 1):
                counts[word[start:end]] += count
    ranked = sorted(
        (-count * len(piece), piece) for piece, count in counts.items() if count > 1 and alphabet >= set(piece)
    )
    return sorted({*letters, *(piece for _, piece in ranked[: max(0, limit - len(letters))])})


class _Edges(NamedTuple):
    """Pieces of words that start at one offset: nodes where they start and end, and their numbers."""

    starts: Array
    ends: Array
    pieces: Array


@final
class _Lattice:
    """All segmentations of words into pieces: nodes are the positions between letters, edges are pieces."""

    def __init__(self, words: Sequence[str], pieces: Sequence[str], *, allow_whole: bool = True) -> None:
        numbers = {piece: number for number, piece in enumerate(pieces)}
        nodes = np.cumsum([0, *(len(word) + 1 for word in words)], dtype=np.int64)
        rows: list[tuple[int, int, int, int]] = []
        for word, begin in zip(words, nodes.tolist(), strict=False):
            length = len(word)
            for start in range(length):
                for end in range(start + 1, min(start + MAX_PIECE_LENGTH, length) + 1):
                    number = numbers.get(word[start:end])
                    if number is not None and (allow_whole or end - start < length):
                        rows.append((start, begin + start, begin + end, number))
        edges = np.array(rows, np.int64).reshape(-1, 4)
        order = np.argsort(edges[:, 0], kind="stable")
        bounds = np.searchsorted(edges[order, 0], np.arange(max(map(len, words), default=0) + 1))
        self._steps = [_Edges(*edges[order[low:high], 1:].T) for low, high in pairwise(bounds)]
        self._start_nodes, self._end_nodes, self._nodes = nodes[:-1], nodes[1:] - 1, int(nodes[-1])
        self._pieces = len(pieces)

    def expected_counts(self, probabilities: Array, weights: Array) -> Array:
        """(P,), (W,) -> (P,): expected count of each piece in words of these frequencies, over all segmentations."""
        forward, backward = np.zeros(self._nodes), np.zeros(self._nodes)
        forward[self._start_nodes] = 1
        backward[self._end_nodes] = 1
        for step in self._steps:
            np.add.at(forward, step.ends, forward[step.starts] * probabilities[step.pieces])
        for step in reversed(self._steps):
            np.add.at(backward, step.starts, backward[step.ends] * probabilities[step.pieces])
        totals = forward[self._end_nodes]
        share = np.zeros(self._nodes)
        share[self._start_nodes] = np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0)
        share = np.repeat(share[self._start_nodes], self._end_nodes - self._start_nodes + 1)
        counts = np.zeros(self._pieces)
        for step in self._steps:
            expected = forward[step.starts] * probabilities[step.pieces] * backward[step.ends] * share[step.starts]
            np.add.at(counts, step.pieces, expected)
        return counts

    def best_scores(self, log_probabilities: Array) -> Array:
        """(P,) -> (W,): log-probability of the best segmentation of each word."""
        scores = np.full(self._nodes, -np.inf)
        scores[self._start_nodes] = 0
        for step in self._steps:
            np.maximum.at(scores, step.ends, scores[step.starts] + log_probabilities[step.pieces])
        return np.asarray(scores[self._end_nodes])


def _log(probabilities: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probabilities))
