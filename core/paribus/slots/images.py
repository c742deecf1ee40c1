"""Images as documents: each value of each pixel is a letter, so that what reads text reads them unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from paribus.slots.corpus import Document

if TYPE_CHECKING:
    from paribus.slots.objective import Tokens

VALUES: Final = 256
FIRST: Final = 0x2800  # of the 256 patterns of Braille: as many letters as there are values, and none of them is blank

Pixels = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
Ints = np.ndarray[tuple[int], np.dtype[Any]]


def pictured(name: str, pixels: Pixels, label: int) -> Document:
    """The document of an image, (height, width, channels), of the class `label`, below 65,536.

    A letter for each value, row by row, the channels of a pixel together. The other side is the class, in two letters,
    the higher first.
    """
    high, low = divmod(label, VALUES)
    return Document(name, (lettered(pixels.reshape(-1)),), (lettered(np.array([high, low], np.uint8)),))


def lettered(values: Pixels) -> str:
    """(N,) values as N letters."""
    return (values.astype("<u2") + np.uint16(FIRST)).tobytes().decode("utf-16-le")


def unlettered(text: str) -> Ints:
    """The values of letters; what is below 0 or above 255 was no letter of an image."""
    return np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").astype(np.int64) - FIRST


def labels_of(tokens: Tokens, index: Ints | None = None) -> Ints:
    """(B,) the class of each document, or of those at `index`, where ids are the values of pixels."""
    assert tokens.targets is not None, "the rules let only a corpus with labels come here"
    ids = np.asarray(tokens.targets.ids).reshape(-1, 2)
    ids = (ids if index is None else ids[index]).astype(np.int64)
    labels: Ints = ids[:, 0] * VALUES + ids[:, 1]
    return labels
