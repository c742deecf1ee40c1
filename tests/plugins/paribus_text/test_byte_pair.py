"""Byte-pair tokenizer."""

import pytest
from tests.fixtures.problems import raises_problem

from paribus import DataError, SpecError
from paribus_text.byte_pair import BytePair

TEXTS = ["the cat sat on the mat and the dog sat there", "then there they are, these other cats"] * 3


def trained(size: int | None = 400) -> BytePair:
    tokenizer = BytePair(sentinels=4)
    tokenizer.train(TEXTS, size)
    return tokenizer


TOKENIZER = trained()


def test_frequent_pairs_are_merged() -> None:
    assert len(TOKENIZER.encode_batch([" the the"])[0]) == 2
    assert TOKENIZER.vocabulary().size < 400  # no frequent pair is left


@pytest.mark.parametrize("size", [266, 270, 280])
def test_the_vocabulary_has_at_most_the_given_size(size: int) -> None:
    assert trained(size).vocabulary().size == size


def test_special_tokens_are_decoded_to_their_names() -> None:
    vocabulary = TOKENIZER.vocabulary()
    (ids,) = TOKENIZER.encode_batch(["the cat"])
    ids = [vocabulary.specials["bos"], *ids, vocabulary.sentinels[2], vocabulary.size]
    assert TOKENIZER.decode(ids) == f"<bos>the cat<sentinel 2><no token {vocabulary.size}>"


def test_too_small_a_vocabulary_is_refused_with_the_minimum() -> None:
    with raises_problem(SpecError, "vocabulary-too-small", "265", "266"):
        trained(265)


@pytest.mark.parametrize(
    "state", [b"{", b'{"bpe": {"sentinels": 1}}', b'{"bpe": {"sentinels": 1, "pieces": ["a"], "merges": [["a", "b"]]}}']
)
def test_a_broken_state_is_refused(state: bytes) -> None:
    with raises_problem(DataError, "tokenizer-state", "bpe"):
        BytePair().load(state)


def test_a_word_includes_the_space_before_it() -> None:
    (ids,) = TOKENIZER.encode_batch(["the cat,\tthere"])
    begins = TOKENIZER.vocabulary().word_starts
    assert begins is not None
    assert [TOKENIZER.decode([token])[0] for token in ids if token in begins] == [" ", "\t"]
    assert begins.isdisjoint(TOKENIZER.vocabulary().reserved)
