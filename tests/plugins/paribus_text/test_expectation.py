"""A unigram model is learned, held against sums over every way to cut each word."""

import itertools
import math

import numpy as np
import pytest

from paribus_text.expectation import _Lattice, learned

WORDS = {"abab": 3, "aba": 2, "bb": 5, "a": 1}
PIECES = ["a", "ab", "aba", "b", "ba", "bb"]
ODDS = np.array([0.3, 0.2, 0.1, 0.25, 0.05, 0.1])


def ways(word: str) -> list[list[str]]:
    found = [
        [word[a:b] for a, b in itertools.pairwise((0, *cuts, len(word)))]
        for count in range(len(word))
        for cuts in itertools.combinations(range(1, len(word)), count)
    ]
    return [way for way in found if all(piece in PIECES for piece in way)]


def likely(way: list[str]) -> float:
    return math.prod(float(ODDS[PIECES.index(piece)]) for piece in way)


def test_pieces_are_expected_as_often_as_all_ways_to_cut_say() -> None:
    words = sorted(WORDS)
    counts = _Lattice(words, PIECES).expected(ODDS, np.array([WORDS[word] for word in words], float))
    for at, piece in enumerate(PIECES):
        expected = sum(
            count * sum(likely(way) * way.count(piece) for way in ways(word)) / sum(map(likely, ways(word)))
            for word, count in WORDS.items()
        )
        assert counts[at] == pytest.approx(expected, abs=1e-12)


def test_the_likeliest_cut_is_the_best_of_all_and_may_leave_out_the_word_itself() -> None:
    lattice, inside = _Lattice(PIECES, PIECES), _Lattice(PIECES, PIECES, whole=False)
    for at, piece in enumerate(PIECES):
        every = [math.log(likely(way)) for way in ways(piece)]
        assert lattice.best(np.log(ODDS))[at] == pytest.approx(max(every), abs=1e-12)
        others = [math.log(likely(way)) for way in ways(piece) if len(way) > 1]
        assert inside.best(np.log(ODDS))[at] == pytest.approx(max(others, default=-math.inf), abs=1e-12)


def test_words_that_come_often_become_pieces_and_letters_stay() -> None:
    words = {"thing": 50, "king": 40, "ring": 30, "x": 1}
    found = dict(learned(words, sorted(set("".join(words))), 10))
    assert len(found) == 10
    assert set("thingkrx") <= set(found)
    assert "ing" in found or {"thing", "king"} <= set(found)
