"""WordPiece tokenizer."""

import pytest
from tests.fixtures.problems import raises_problem

from paribus import DataError, SpecError
from paribus_text.word_piece import WordPiece

TEXTS = ["The cat sat on the mat, and the dog sat there.", "Then there they are: these other cäts."] * 3


def trained(size: int | None = 200, *, lowercase: bool = True, texts: list[str] = TEXTS) -> WordPiece:
    tokenizer = WordPiece(sentinels=4, lowercase=lowercase)
    tokenizer.train(texts, size)
    return tokenizer


TOKENIZER = trained()
UNKNOWN = TOKENIZER.vocabulary().specials["unk"]


def test_words_are_decoded_without_capitals_and_accents() -> None:
    (ids,) = TOKENIZER.encode_batch(["The CÄT, there"])
    assert TOKENIZER.decode(ids) == "the cat , there"


def test_capitals_are_kept_by_option() -> None:
    tokenizer = trained(lowercase=False)
    (ids,) = tokenizer.encode_batch(["The cäts"])
    assert tokenizer.decode(ids) == "The cäts"


def test_an_unseen_letter_is_unk() -> None:
    (ids,) = TOKENIZER.encode_batch(["the ж"])
    assert ids[-1] == UNKNOWN
    assert TOKENIZER.decode(ids) == "the <unk>"


def test_a_corpus_with_more_letters_than_ids_keeps_the_most_frequent() -> None:
    letters = "".join(chr(0x430 + place) * (40 - place) for place in range(32))
    tokenizer = trained(25, texts=[letters])
    assert tokenizer.vocabulary().size <= 25
    (ids,) = tokenizer.encode_batch([f"{chr(0x430)} {chr(0x44F)}"])
    assert ids[0] != UNKNOWN
    assert ids[1] == UNKNOWN


def test_the_provided_special_tokens_match_the_vocabulary() -> None:
    assert set(WordPiece.traits["provides"]) == {*TOKENIZER.vocabulary().specials, "sentinels"}


def test_special_tokens_are_decoded_to_their_names() -> None:
    vocabulary = TOKENIZER.vocabulary()
    assert TOKENIZER.decode([vocabulary.specials["cls"], vocabulary.sentinels[0]]) == "<cls> <sentinel 0>"


def test_too_small_a_vocabulary_is_refused_with_the_minimum() -> None:
    with raises_problem(SpecError, "vocabulary-too-small", "12", "13"):
        trained(12)


@pytest.mark.parametrize("state", [b"nonsense", b'{"wordpiece": {"lowercase": true, "sentinels": 4}}'])
def test_a_broken_state_is_refused(state: bytes) -> None:
    with raises_problem(DataError, "tokenizer-state", "wordpiece"):
        WordPiece().load(state)


def test_a_word_begins_where_a_piece_is_not_within_one() -> None:
    (ids,) = TOKENIZER.encode_batch(["the cats, othere"])
    begins = TOKENIZER.vocabulary().word_starts
    assert begins is not None
    assert sum(token in begins for token in ids) == 4 < len(ids)
    assert ids[0] in begins
    assert begins.isdisjoint(TOKENIZER.vocabulary().reserved)
