"""Byte-pair tokenizer."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus import DataError, SpecError
from paribus_text.byte_pair import BytePair

TEXTS = ["the cat sat on the mat and the dog sat there", "then there they are, these other cats"] * 3


def trained(size: int | None = 400) -> BytePair:
    tokenizer = BytePair(sentinels=4)
    tokenizer.train(TEXTS, size)
    return tokenizer


TOKENIZER = trained()


@given(st.text())
def test_any_text_survives_encoding_and_decoding(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode_batch([text])[0]) == text


@given(st.text())
def test_no_text_encodes_to_a_reserved_id(text: str) -> None:
    (ids,) = TOKENIZER.encode_batch([f"<mask> [MASK] <sentinel 0> </s> <|endoftext|> {text}"])
    assert TOKENIZER.vocabulary().reserved.isdisjoint(ids)
    assert max(ids) < TOKENIZER.vocabulary().size


def test_frequent_pairs_are_merged() -> None:
    assert len(TOKENIZER.encode_batch([" the the"])[0]) == 2
    assert TOKENIZER.vocabulary().size < 400  # no frequent pair is left


@pytest.mark.parametrize("size", [266, 270, 280])
def test_the_vocabulary_has_at_most_the_given_size(size: int) -> None:
    assert trained(size).vocabulary().size == size


@pytest.mark.thorough
def test_the_same_texts_give_the_same_state_in_another_process() -> None:
    code = (
        "from paribus_text.byte_pair import BytePair; import sys\n"
        f"t = BytePair(sentinels=4); t.train({TEXTS!r}, 400); sys.stdout.buffer.write(t.state())"
    )
    for seed in ("1", "2"):
        environment = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": "true"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
        assert done.stdout == TOKENIZER.state()


def test_a_tokenizer_is_restored_from_its_state() -> None:
    loaded = BytePair()
    loaded.load(TOKENIZER.state())
    assert loaded.vocabulary() == TOKENIZER.vocabulary()
    assert loaded.state() == TOKENIZER.state()
    assert loaded.encode_batch(TEXTS) == TOKENIZER.encode_batch(TEXTS)


def test_special_tokens_are_decoded_to_their_names() -> None:
    vocabulary = TOKENIZER.vocabulary()
    (ids,) = TOKENIZER.encode_batch(["the cat"])
    ids = [vocabulary.specials["bos"], *ids, vocabulary.sentinels[2], vocabulary.size]
    assert TOKENIZER.decode(ids) == f"<bos>the cat<sentinel 2><no token {vocabulary.size}>"


def test_too_small_a_vocabulary_is_refused_with_the_minimum() -> None:
    with pytest.raises(SpecError, match=r"error\[vocabulary-too-small\] .*265 ids.*266 or more"):
        trained(265)


@pytest.mark.parametrize(
    "state", [b"{", b'{"bpe": {"sentinels": 1}}', b'{"bpe": {"sentinels": 1, "pieces": ["a"], "merges": [["a", "b"]]}}']
)
def test_a_broken_state_is_refused(state: bytes) -> None:
    with pytest.raises(DataError, match=r"error\[tokenizer-state\] .*`bpe`"):
        BytePair().load(state)


def test_a_word_includes_the_space_before_it() -> None:
    (ids,) = TOKENIZER.encode_batch(["the cat,\tthere"])
    begins = TOKENIZER.vocabulary().word_starts
    assert begins is not None
    assert [TOKENIZER.decode([token])[0] for token in ids if token in begins] == [" ", "\t"]
    assert begins.isdisjoint(TOKENIZER.vocabulary().reserved)
