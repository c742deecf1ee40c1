"""Corpus of handwritten digits from scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, final

from paribus import (
    Corpus,
    CorpusTraits,
    DataError,
    Document,
    Pixels,
    Range,
    Split,
    image_document,
    missing_package,
)
from paribus_text.holdout import digest

MAXIMUM = 16  # of the original pixel values


@final
class Digits(Corpus):
    """1,797 grey images of 8 by 8 pixels: "Methods of Combining Multiple Classifiers and Their Applications to
    Handwriting Recognition" (Xu, Krzyzak & Suen 1992), from scikit-learn.

    They are ordered by writer and the last ones are held out, so the splits share few writers.
    """

    traits: ClassVar[CorpusTraits] = {
        "provides": ["documents", "labels"],
        "modality": "images",
        "document_facts": {"image": 8, "channels": 1, "classes": 10},
    }

    def __init__(
        self,
        *,
        held_out: Annotated[float, "share of the images held out for validation", Range(above=0, high=0.5)] = 0.2,
    ) -> None:
        self._share = held_out
        self._cache: tuple[Pixels, Pixels] | None = None
        self._repeated = 0

    def documents(self, split: Split) -> Iterator[Document]:
        pixels, labels = self._read()
        boundary = round(len(pixels) * (1 - self._share))
        numbers: Mapping[Split, range] = {"train": range(boundary), "val": range(boundary, len(pixels))}
        for number in numbers[split]:
            yield image_document(f"digit {number}, a {labels[number]}", pixels[number], int(labels[number]))

    def fingerprint(self) -> str:
        return digest([str(self._share), *(array.tobytes().hex() for array in self._read())])

    def skipped_inputs(self) -> dict[str, int]:
        self._read()
        return {"images that repeat another": self._repeated}

    def _read(self) -> tuple[Pixels, Pixels]:
        """Return the images, (N, 8, 8, 1) from 0 to 255, and their digits."""
        if self._cache is None:
            import numpy as np

            try:
                from sklearn.datasets import load_digits
            except ImportError as error:
                user, alternative = "the corpus `digits`", "the corpus `shapes`"
                raise DataError(
                    missing_package("scikit-learn", "digits", user, path="corpus", alternative=alternative)
                ) from error
            dataset = load_digits()
            _, first_index = np.unique(np.asarray(dataset.images), axis=0, return_index=True)
            distinct = np.sort(first_index)
            self._repeated = len(dataset.images) - len(distinct)
            pixels = np.asarray(dataset.images)[distinct].astype(np.int64) * 255 // MAXIMUM
            self._cache = pixels[..., None].astype(np.uint8), np.asarray(dataset.target)[distinct].astype(np.uint8)
        return self._cache
