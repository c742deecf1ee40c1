"""Pixel tokenizer: one token per pixel value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, final

from paribus import DataError, Problem, Tokenizer, TokenizerTraits, Vocabulary, pixels_to_text, text_to_pixels
from paribus_text.reserved_tokens import display, display_names, pack_state, unpack_state, vocabulary_too_small

VALUES = 256
VOCABULARY = Vocabulary(VALUES + 1, {"mask": VALUES})


@final
class Pixels(Tokenizer):
    """Pixel tokenizer: the values of an image, 0 to 255, row by row. "Generative Pretraining from Pixels" (Chen et al.
    2020).

    No token separates images: with a sequence length equal to the values of an image, each example is one image.
    """

    traits: ClassVar[TokenizerTraits] = {"provides": ["mask"], "modality": "images", "fixed": True}

    def train(self, texts: Iterable[str], size: int | None) -> None:
        if size is not None and size < VOCABULARY.size:
            raise vocabulary_too_small("pixels", size, VOCABULARY.size, "256 are pixel values, and one is the mask")

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [_values(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        import numpy as np

        special = display_names(VOCABULARY)
        return "".join(
            pixels_to_text(np.array([token], np.uint8)) if 0 <= token < VALUES else display(special, token)
            for token in ids
        )

    def vocabulary(self) -> Vocabulary:
        return VOCABULARY

    def state(self) -> bytes:
        return pack_state("pixels", {})

    def load(self, state: bytes) -> None:
        with unpack_state("pixels", state) as content:
            assert content == {}, "the tokenizer is not trained"


def _values(text: str) -> list[int]:
    import numpy as np

    values = text_to_pixels(text)
    wrong = np.flatnonzero((values < 0) | (values >= VALUES))
    if wrong.size:
        letter = text[int(wrong[0])]
        message = f"the tokenizer `pixels` expects images, got a document with the character {letter!r}"
        raise DataError(Problem(code="not-an-image", path="tokenizer", message=message, valid="a corpus of images"))
    ids: list[int] = values.tolist()
    return ids
