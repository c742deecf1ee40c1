"""Tokenizer of token ids: numbers as text."""

import pytest
from tests.fixtures.problems import raises_problem

from paribus import DataError, SpecError
from paribus_text.token_ids import TokenIds


def test_ids_are_numbers_and_special_tokens_have_names() -> None:
    tokenizer = TokenIds(size=50257, eos=50256, mask=3)
    assert tokenizer.encode_batch(["15  50256 0", ""]) == [[15, 50256, 0], []]
    assert tokenizer.decode([15, 50256, 0, 3]) == " 15<eos> 0<mask>"
    assert tokenizer.vocabulary().specials == {"eos": 50256, "mask": 3}
    assert (tokenizer.vocabulary().size, tokenizer.vocabulary().end_token) == (50257, 50256)


@pytest.mark.parametrize("text", ["word", "1.5", "-1", "10", "²"])
def test_other_text_is_refused(text: str) -> None:
    with raises_problem(DataError, "not-an-id", "tokenizer", "0", "9"):
        TokenIds(size=10).encode_batch([f"1 {text}"])


def test_special_tokens_are_in_the_vocabulary() -> None:
    with raises_problem(SpecError, "out-of-range", "tokenizer.eos", "0", "9"):
        TokenIds(size=10, eos=10)


def test_a_smaller_vocabulary_is_refused() -> None:
    TokenIds(size=10).train([], 10)
    with raises_problem(SpecError, "vocabulary-too-small", "dims.vocabulary"):
        TokenIds(size=10).train([], 9)


def test_a_state_restores_size_and_special_tokens() -> None:
    one, two = TokenIds(size=10, eos=3, pad=4), TokenIds(size=5)
    two.load(one.state())
    assert two.vocabulary() == one.vocabulary()
    assert two.state() == one.state()
    with raises_problem(DataError, "tokenizer-state", "ids"):
        two.load(b"{}")
