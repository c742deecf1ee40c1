"""Tokenizer of pixels."""

import numpy as np
import pytest
from tests.fixtures.problems import raises_problem

from paribus import DataError, SpecError, pixels_to_text
from paribus_text.pixels import Pixels


def test_a_value_is_its_own_id() -> None:
    tokenizer = Pixels()
    text = pixels_to_text(np.arange(256, dtype=np.uint8))
    assert tokenizer.encode_batch([text, text[:3]]) == [list(range(256)), [0, 1, 2]]
    assert tokenizer.decode([*range(256), 256, 257]) == text + "<mask><no token 257>"


@pytest.mark.parametrize("text", ["a", "⠀⠀b", "\ud800", "\u27ff", "\u2900"])
def test_a_text_that_is_not_an_image_is_refused(text: str) -> None:
    with raises_problem(DataError, "not-an-image", "tokenizer"):
        Pixels().encode_batch([text])


def test_a_vocabulary_that_cannot_hold_every_value_is_refused() -> None:
    Pixels().train([], 257)
    with raises_problem(SpecError, "vocabulary-too-small", "256"):
        Pixels().train([], 256)


def test_fitting_changes_nothing() -> None:
    one, two = Pixels(), Pixels()
    two.load(one.state())
    assert two.vocabulary() == one.vocabulary()
    assert one.vocabulary().size == 257
    with raises_problem(DataError, "tokenizer-state", "pixels"):
        two.load(b"{}")
