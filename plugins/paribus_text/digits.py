"""Digits written by hand, which come with scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, final

import numpy as np

from paribus import Corpus, DataError, Document, Pixels, Problem, Range, Split, Traits, image_document
from paribus_text.holding import digest

BRIGHTEST = 16  # of the values as they come


@final
class Digits(Corpus):
    """1,797 grey images of 8 by 8: "Methods of Combining Multiple Classifiers and Their Applications to Handwriting
    Recognition" (Xu, Krzyzak & Suen 1992), as scikit-learn has them.

    They come writer by writer, and the last ones are held out, so that those who wrote them wrote little else here.
    """

    traits: ClassVar[Traits] = {
        "provides": ["documents", "labels"],
        "modality": "images",
        "tells": {"image": 8, "channels": 1, "classes": 10},
    }

    def __init__(
        self,
        *,
        held_out: Annotated[float, "share of the images held out for validation", Range(above=0, high=0.5)] = 0.2,
    ) -> None:
        self._share = held_out
        self._found: tuple[Pixels, Pixels] | None = None
        self._repeated = 0

    def documents(self, split: Split) -> Iterator[Document]:
        pixels, labels = self._read()
        first = round(len(pixels) * (1 - self._share))
        numbers: Mapping[Split, range] = {"train": range(first), "val": range(first, len(pixels))}
        for number in numbers[split]:
            yield image_document(f"digit {number}, a {labels[number]}", pixels[number], int(labels[number]))

    def fingerprint(self) -> str:
        return digest([str(self._share), *(array.tobytes().hex() for array in self._read())])

    def skipped_inputs(self) -> dict[str, int]:
        self._read()
        return {"images that repeat another": self._repeated}

    def _read(self) -> tuple[Pixels, Pixels]:
        """(N, 8, 8, 1) from 0 to 255, and which digit each is."""
        if self._found is None:
            try:
                from sklearn.datasets import load_digits
            except ImportError as error:
                what = "the corpus `digits` comes with scikit-learn, which is not installed"
                valid = "pip install 'paribus[digits]', or the corpus `shapes`"
                raise DataError(Problem(code="not-installed", path="corpus", message=what, valid=valid)) from error
            found = load_digits()
            _, first = np.unique(np.asarray(found.images), axis=0, return_index=True)
            kept = np.sort(first)
            self._repeated = len(found.images) - len(kept)
            pixels = np.asarray(found.images)[kept].astype(np.int64) * 255 // BRIGHTEST
            self._found = pixels[..., None].astype(np.uint8), np.asarray(found.target)[kept].astype(np.uint8)
        return self._found
