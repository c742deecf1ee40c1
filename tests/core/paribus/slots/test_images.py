"""Images as documents."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paribus import image_document, pixels_to_text, text_to_pixels
from paribus.slots.images import VALUES

anything = st.lists(st.integers(0, VALUES - 1), min_size=1)


@given(anything)
def test_values_come_back(given: list[int]) -> None:
    text = pixels_to_text(np.array(given, np.uint8))
    assert len(text) == len(given)
    assert text_to_pixels(text).tolist() == given


def test_no_value_is_a_blank_or_changes_with_case() -> None:
    text = pixels_to_text(np.arange(VALUES, dtype=np.uint8))
    assert "".join(text.split()) == text.strip() == text.lower() == text
    assert len(set(text)) == VALUES


def test_an_image_is_its_values_row_by_row_and_its_label_its_class() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 3, 2)
    document = image_document("it", pixels, 700)
    assert text_to_pixels(document.text).tolist() == list(range(12))
    assert (document.target, document.labels) == ((), (700,))
