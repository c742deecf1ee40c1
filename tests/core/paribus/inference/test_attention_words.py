"""Tokens of attention maps: the pieces of a word can be seen as such."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import paribus
from paribus.models.lightning_module import Model

TINY = ("dims.width=16", "dims.heads=2", "dims.layers=1", "dims.length=64", "data.validation=16")


def model_of(preset: str, *options: str) -> Model:
    model: Model = paribus.assemble(paribus.spec(preset, *TINY, *options))
    return model


def words_of(maps: paribus.AttentionMaps) -> list[str]:
    """Return the tokens of each word, joined; a special token is a word."""
    words: list[str] = []
    before: Any = None
    for token, word in zip(maps.query_tokens, maps.query_words, strict=True):
        if word is not None and word == before:
            words[-1] += token.removeprefix("##")
        else:
            words.append(token)
        before = word
    return words


@pytest.mark.thorough
def test_pieces_inside_a_word_of_wordpiece_are_marked() -> None:
    maps = paribus.attend(model_of("bert-tiny", "dims.vocabulary=400"), "unpredictable names", "of lists")
    assert words_of(maps) == ["<cls>", "unpredictable", "names", "<sep>", "of", "lists", "<sep>"]
    continues = [False, *(one is not None and one == other for one, other in pairwise(maps.query_words))]
    assert any(continues)
    assert [token.startswith("##") for token in maps.query_tokens] == continues
    assert maps.key_tokens == maps.query_tokens
    assert maps.key_words == maps.query_words


@pytest.mark.thorough
@pytest.mark.parametrize("tokenizer", ["bpe", "unigram"])
def test_pieces_with_their_space_are_not_marked(tokenizer: str) -> None:
    model = model_of("gpt-tiny", f"tokenizer={tokenizer}", "dims.vocabulary=400")
    maps = paribus.attend(model, "unpredictable names ##")
    assert words_of(maps)[:2] == ["unpredictable", " names"]
    assert "".join(maps.query_tokens) == "unpredictable names ##"


def test_bytes_have_words_as_well() -> None:
    maps = paribus.attend(model_of("gpt-tiny"), "a bc")
    assert maps.query_tokens == ("a", " ", "b", "c")
    assert maps.query_words == (0, 1, 1, 1)


def test_tokens_without_a_tokenizer_have_no_words() -> None:
    model = model_of("gpt-tiny")
    model.text, model.tokenizer = None, ""
    maps = paribus.attend(model, [3, 4])
    assert (maps.query_tokens, maps.query_words) == (("3", "4"), ())
