"""Unigram tokenizer."""

import itertools
import math
from collections import Counter

import pytest
from tests.fixtures.problems import raises_problem

from paribus import DataError, SpecError
from paribus_text.unigram import BLANK, Unigram

TEXTS = ["the cat sat on the mat and the dog sat there", "then there they are, these other cats"] * 3


def trained(size: int | None = 360, *, byte_fallback: bool = True, lowercase: bool = False) -> Unigram:
    tokenizer = Unigram(sentinels=4, byte_fallback=byte_fallback, lowercase=lowercase)
    tokenizer.train(TEXTS, size)
    return tokenizer


TOKENIZER = trained()


def test_without_byte_fallback_unknown_letters_are_unk() -> None:
    tokenizer = trained(60, byte_fallback=False)
    assert tokenizer.decode(tokenizer.encode_batch(["the ☃☃ cat"])[0]) == "the <unk> cat"
    assert tokenizer.decode(tokenizer.encode_batch(TEXTS)[0]) == TEXTS[0]


def test_a_word_has_its_most_probable_segmentation() -> None:
    odds = dict(TOKENIZER._pieces)
    for word in ("the", "there", "other", "cats", "mat"):
        text = BLANK + word
        ways = [
            [text[a:b] for a, b in itertools.pairwise((0, *cuts, len(text)))]
            for count in range(len(text))
            for cuts in itertools.combinations(range(1, len(text)), count)
        ]
        likeliest = max(sum(odds.get(piece, -math.inf) for piece in way) for way in ways)
        (ids,) = TOKENIZER.encode_batch([f" {word}"])
        pieces = [TOKENIZER._pieces[token - TOKENIZER._first] for token in ids]
        assert "".join(piece for piece, _ in pieces) == text
        assert sum(score for _, score in pieces) == pytest.approx(likeliest, abs=1e-9)


def test_the_probabilities_of_all_pieces_sum_to_one() -> None:
    assert sum(math.exp(odds) for _, odds in TOKENIZER._pieces) == pytest.approx(1, abs=1e-4)


def test_frequent_words_are_one_piece() -> None:
    assert len(TOKENIZER.encode_batch([" the the"])[0]) == 2


def test_pieces_that_begin_a_word_are_known() -> None:
    begins = TOKENIZER.vocabulary().word_starts
    assert begins is not None
    (ids,) = TOKENIZER.encode_batch([" the cat sat thermat"])
    assert sum(token in begins for token in ids) == 4


@pytest.mark.parametrize("size", [269, 275, 290, 297, 360])
def test_the_vocabulary_has_at_most_the_given_size(size: int) -> None:
    vocabulary_size = trained(size).vocabulary().size
    assert vocabulary_size <= size
    assert vocabulary_size == size or size != 297


def test_every_letter_is_a_piece_if_the_size_allows() -> None:
    assert set("".join(TEXTS).replace(" ", BLANK)) <= {piece for piece, _ in TOKENIZER._pieces}


def test_normalization_options_fold_case_and_compatible_letters() -> None:
    tokenizer = Unigram(lowercase=True, nfkc=True, sentinels=0)
    tokenizer.train(TEXTS, 400)
    assert tokenizer.encode_batch(["\uff34he CAT"]) == tokenizer.encode_batch(["the cat"])


def test_special_tokens_are_decoded_to_names_and_ids_are_distinct() -> None:
    vocabulary = TOKENIZER.vocabulary()
    (ids,) = TOKENIZER.encode_batch(["the cat"])
    ids = [vocabulary.specials["bos"], *ids, vocabulary.sentinels[2], vocabulary.size]
    assert TOKENIZER.decode(ids) == f"<bos>the cat<sentinel 2><no token {vocabulary.size}>"
    pieces = Counter(TOKENIZER.piece(token) for token in range(vocabulary.size))
    assert max(pieces.values()) == 1


def test_too_small_a_vocabulary_is_refused_with_the_minimum() -> None:
    with raises_problem(SpecError, "vocabulary-too-small", "268", "269"):
        trained(268)


@pytest.mark.parametrize("state", [b"{", b'{"unigram": {"sentinels": 1}}'])
def test_a_broken_state_is_refused(state: bytes) -> None:
    with raises_problem(DataError, "tokenizer-state", "unigram"):
        Unigram().load(state)
