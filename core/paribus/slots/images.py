"""Images as documents: each value of each pixel is a letter, so that what reads text reads them unchanged."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from paribus.slots.corpus import Document

VALUES: Final = 256
FIRST: Final = 0x2800  # of the 256 patterns of Braille: as many letters as there are values, and none of them is blank

Pixels = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
Ints = np.ndarray[tuple[int], np.dtype[Any]]


def image_document(name: str, pixels: Pixels, label: int) -> Document:
    """The document of an image, (height, width, channels), of the class `label`.

    A letter for each value, row by row, the channels of a pixel together.
    """
    return Document(name, (pixels_to_text(pixels.reshape(-1)),), labels=(label,))


def pixels_to_text(values: Pixels) -> str:
    """(N,) values as N letters."""
    return (values.astype("<u2") + np.uint16(FIRST)).tobytes().decode("utf-16-le")


def text_to_pixels(text: str) -> Ints:
    """The values of letters; what is below 0 or above 255 was no letter of an image."""
    return np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").astype(np.int64) - FIRST
