"""Byte tokenizer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus import DataError, SpecError
from paribus_text.bytes import Bytes


def test_special_tokens_are_decoded_to_names_and_broken_bytes_kept() -> None:
    tokenizer = Bytes()
    specials, sentinels = tokenizer.vocabulary().specials, tokenizer.vocabulary().sentinels
    ids = [specials["cls"], 104, 105, specials["mask"], 0xC3, sentinels[1], 0xA4, 99_999]
    assert tokenizer.decode(ids) == "<cls>hi<mask>\\xc3<sentinel 1>\\xa4<no token 99999>"


@given(st.integers(0, 100))
def test_all_ids_are_distinct_and_below_the_size(sentinels: int) -> None:
    vocabulary = Bytes(sentinels=sentinels).vocabulary()
    assert len(vocabulary.reserved) == len(vocabulary.specials) + sentinels
    assert sorted(vocabulary.reserved) == list(range(256, vocabulary.size))
    assert len(vocabulary.sentinels) == sentinels


def test_pad_is_not_eos() -> None:
    specials = Bytes().vocabulary().specials
    assert set(Bytes.traits["provides"]) == {*specials, "sentinels"}
    assert len(set(specials.values())) == len(specials)


def test_too_small_a_vocabulary_is_refused_with_the_minimum() -> None:
    Bytes(sentinels=2).train([], 264)
    with raises_problem(SpecError, "vocabulary-too-small", "dims.vocabulary", "263", "264"):
        Bytes(sentinels=2).train([], 263)


@pytest.mark.parametrize("state", [b"", b"\xff", b"[]", b'{"bpe": {}}', b'{"bytes": {"sentinels": "x"}}'])
def test_a_broken_state_is_refused(state: bytes) -> None:
    with raises_problem(DataError, "tokenizer-state", "bytes"):
        Bytes().load(state)


def test_a_word_includes_the_space_before_it() -> None:
    begins = Bytes().vocabulary().word_starts
    assert begins is not None
    text = "one two,\nthree"
    assert [place for place, token in enumerate(text.encode()) if token in begins] == [3, 8]
