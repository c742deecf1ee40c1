"""Tokenizer of symbols separated by spaces."""

from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus import SpecError
from paribus_text.symbols import Symbols

WORDS = st.text("abcd>(", min_size=1, max_size=3)


def trained(*texts: str, size: int | None = None) -> Symbols:
    tokenizer = Symbols(sentinels=0)
    tokenizer.train(texts, size)
    return tokenizer


@given(st.lists(WORDS, min_size=1))
def test_known_words_survive_encoding_and_decoding(words: list[str]) -> None:
    text = " ".join(words)
    tokenizer = trained(text)
    (ids,) = tokenizer.encode_batch([f"  {text}\n"])
    assert tokenizer.decode(ids) == text
    assert tokenizer.vocabulary().reserved.isdisjoint(ids)
    assert max(ids) < tokenizer.vocabulary().size == tokenizer.vocabulary().size


def test_unknown_words_are_unk_and_the_rarest_words_are_dropped() -> None:
    tokenizer = trained("b a a", "c c a", size=9)
    unknown = tokenizer.vocabulary().specials["unk"]
    assert tokenizer.encode_batch(["a b c d"]) == [[7, unknown, 8, unknown]]
    assert tokenizer.decode([7, unknown, 8, 99]) == "a <unk> c <no token 99>"


def test_a_vocabulary_without_room_for_a_word_is_refused() -> None:
    with raises_problem(SpecError, "vocabulary-too-small", "7"):
        trained("a", size=7)


def test_every_symbol_begins_a_word() -> None:
    tokenizer = Symbols()
    tokenizer.train(["a b", "c"], None)
    vocabulary = tokenizer.vocabulary()
    assert vocabulary.word_starts == frozenset(range(vocabulary.size)) - vocabulary.reserved
