"""Training of a unigram model, compared with sums over all segmentations of each word."""

import itertools
import math

import numpy as np
import pytest

from paribus_text.unigram_training import _Lattice, train_unigram

WORDS = {"abab": 3, "aba": 2, "bb": 5, "a": 1}
PIECES = ["a", "ab", "aba", "b", "ba", "bb"]
PROBABILITIES = np.array([0.3, 0.2, 0.1, 0.25, 0.05, 0.1])


def segmentations(word: str) -> list[list[str]]:
    candidates = [
        [word[a:b] for a, b in itertools.pairwise((0, *cuts, len(word)))]
        for count in range(len(word))
        for cuts in itertools.combinations(range(1, len(word)), count)
    ]
    return [way for way in candidates if all(piece in PIECES for piece in way)]


def probability(way: list[str]) -> float:
    return math.prod(float(PROBABILITIES[PIECES.index(piece)]) for piece in way)


def test_expected_counts_sum_over_all_segmentations() -> None:
    words = sorted(WORDS)
    counts = _Lattice(words, PIECES).expected_counts(PROBABILITIES, np.array([WORDS[word] for word in words], float))
    for number, piece in enumerate(PIECES):
        expected = sum(
            count
            * sum(probability(way) * way.count(piece) for way in segmentations(word))
            / sum(map(probability, segmentations(word)))
            for word, count in WORDS.items()
        )
        assert counts[number] == pytest.approx(expected, abs=1e-12)


def test_the_best_segmentation_may_exclude_the_whole_word() -> None:
    lattice, proper_lattice = _Lattice(PIECES, PIECES), _Lattice(PIECES, PIECES, allow_whole=False)
    for number, piece in enumerate(PIECES):
        scores = [math.log(probability(way)) for way in segmentations(piece)]
        assert lattice.best_scores(np.log(PROBABILITIES))[number] == pytest.approx(max(scores), abs=1e-12)
        split_scores = [math.log(probability(way)) for way in segmentations(piece) if len(way) > 1]
        assert proper_lattice.best_scores(np.log(PROBABILITIES))[number] == pytest.approx(
            max(split_scores, default=-math.inf), abs=1e-12
        )


def test_frequent_words_become_pieces_and_letters_are_retained() -> None:
    words = {"thing": 50, "king": 40, "ring": 30, "x": 1}
    pieces = dict(train_unigram(words, sorted(set("".join(words))), 10))
    assert len(pieces) == 10
    assert set("thingkrx") <= set(pieces)
    assert "ing" in pieces or {"thing", "king"} <= set(pieces)
