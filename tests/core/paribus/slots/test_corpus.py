"""Corpora: images as documents."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paribus import image_document, pixels_to_text, text_to_pixels
from paribus.slots.corpus import PIXEL_VALUES

pixel_lists = st.lists(st.integers(0, PIXEL_VALUES - 1), min_size=1)


@given(pixel_lists)
def test_pixels_survive_the_conversion_to_text_and_back(values: list[int]) -> None:
    text = pixels_to_text(np.array(values, np.uint8))
    assert len(text) == len(values)
    assert text_to_pixels(text).tolist() == values


def test_no_pixel_character_is_white_space_or_changes_with_case() -> None:
    text = pixels_to_text(np.arange(PIXEL_VALUES, dtype=np.uint8))
    assert "".join(text.split()) == text.strip() == text.lower() == text
    assert len(set(text)) == PIXEL_VALUES


def test_an_image_document_has_its_values_line_by_line_and_its_class_as_label() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 3, 2)
    document = image_document("image", pixels, 700)
    assert text_to_pixels(document.text).tolist() == list(range(12))
    assert (document.target, document.labels) == ((), (700,))
