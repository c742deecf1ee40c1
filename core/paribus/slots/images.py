"""Images as documents: each pixel value is one character, so that tokenizers and objectives read images as text."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from paribus.slots.corpus import Document

VALUES: Final = 256
FIRST: Final = 0x2800  # first of the 256 Braille patterns: one character per value, and none is white space

Pixels = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
Ints = np.ndarray[tuple[int], np.dtype[Any]]


def image_document(name: str, pixels: Pixels, label: int) -> Document:
    """Return the document of an image, (height, width, channels), of the class `label`.

    One character per value, line by line, the channels of a pixel together.
    """
    return Document(name, (pixels_to_text(pixels.reshape(-1)),), labels=(label,))


def pixels_to_text(values: Pixels) -> str:
    """Return (N,) values as N characters."""
    return (values.astype("<u2") + np.uint16(FIRST)).tobytes().decode("utf-16-le")


def text_to_pixels(text: str) -> Ints:
    """Return the values of characters; a value below 0 or above 255 is not a pixel."""
    return np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").astype(np.int64) - FIRST
