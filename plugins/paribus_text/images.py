"""Images as documents: each value of each pixel is a letter, so that what reads text reads them unchanged."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from paribus import Document

VALUES: Final = 256
FIRST: Final = 0x2800  # of the 256 patterns of Braille: as many letters as there are values, and none of them is blank

Pixels = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def image(name: str, pixels: Pixels, label: int) -> Document:
    """(height, width, channels) and its class: a letter for each value, row by row, the channels of a pixel together.

    The other side is the class, in two letters, the higher first.
    """
    return Document(name, (written(pixels.reshape(-1)),), (written(np.array(divmod(label, VALUES), np.uint8)),))


def written(values: Pixels) -> str:
    """(N,) values as N letters."""
    return (values.astype("<u2") + np.uint16(FIRST)).tobytes().decode("utf-16-le")


def values(text: str) -> np.ndarray[tuple[int], np.dtype[Any]]:
    """The values of letters; what is below 0 or above 255 was no letter of an image."""
    return np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").astype(np.int64) - FIRST
