"""Every value of every pixel is a token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, final

import numpy as np

from paribus import DataError, Problem, Tokenizer, Traits, Vocabulary, pixels_to_text, text_to_pixels
from paribus_text.reserved import names, packed, shown, too_small, unpacked

VALUES = 256
VOCABULARY = Vocabulary(VALUES + 1, {"mask": VALUES})


@final
class Pixels(Tokenizer):
    """The values of an image's pixels, 0 to 255, row by row: "Generative Pretraining from Pixels" (Chen et al. 2020).

    There is no mark between images, so that with as many rows as an image has values, each example is one image.
    """

    traits: ClassVar[Traits] = {"provides": ["mask"], "modality": "images"}

    def train(self, texts: Iterable[str], size: int | None) -> None:
        if size is not None and size < VOCABULARY.size:
            raise too_small("pixels", size, VOCABULARY.size, "a pixel has 256 values, and one id is the mask")

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [_values(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        special = names(VOCABULARY)
        return "".join(
            pixels_to_text(np.array([token], np.uint8)) if 0 <= token < VALUES else shown(special, token)
            for token in ids
        )

    def vocabulary(self) -> Vocabulary:
        return VOCABULARY

    def state(self) -> bytes:
        return packed("pixels", {})

    def load(self, state: bytes) -> None:
        with unpacked("pixels", state) as learned:
            assert learned == {}, "there is nothing to learn"


def _values(text: str) -> list[int]:
    found = text_to_pixels(text)
    wrong = np.flatnonzero((found < 0) | (found >= VALUES))
    if wrong.size:
        letter = text[int(wrong[0])]
        what = f"the tokenizer `pixels` reads images, and this document has the letter {letter!r} in it"
        raise DataError(Problem(code="no-image", path="tokenizer", message=what, valid="a corpus of images"))
    listed: list[int] = found.tolist()
    return listed
