"""Slot `corpus`: documents and their split into training and validation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal, NamedTuple

from paribus.slots.component import Component, Traits

Split = Literal["train", "val"]


class Document(NamedTuple):
    """Document: a text as sentences in order (joined by a space), or a pair of texts.

    `labels` holds its annotations; the corpus declares their kind in the trait `provides`: `labels`, one whole number,
    the class; `scores`, one number; `tags`, a whole number for each sentence, each of which is a word; `answers`, the
    first and the last sentence of the answer in the target, -1 and -1 if there is no answer.
    """

    name: str  # for errors: a path and a line, a topic
    sentences: tuple[str, ...]
    target: tuple[str, ...] = ()  # sentences of the target side of a pair
    language: str = ""  # language of the sentences, if the corpus has several
    labels: tuple[float, ...] = ()
    target_language: str = ""

    @property
    def text(self) -> str:
        """Sentences joined by spaces."""
        return " ".join(self.sentences)


class CorpusTraits(Traits, total=False):
    """Traits of a corpus."""

    provides: list[str]  # contents of its documents: sentences, documents, pairs, labels, …
    provides_if: dict[str, str]  # content -> option without which the corpus does not provide it
    document_facts: dict[str, int | str]  # name -> number that describes its documents, or the option that has it
    modality: Literal["text", "images"]  # default: text


class Corpus(Component, ABC):
    """Corpus: documents in a fixed order, split by document. A corpus imports no torch."""

    traits: ClassVar[CorpusTraits] = {}

    @abstractmethod
    def documents(self, split: Split) -> Iterator[Document]:
        """Return the documents of a split, always in the same order. The two splits share no document."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return the sha256 of everything that decides what `documents` returns: contents, not paths or times."""

    def quick_fingerprint(self) -> str | None:
        """Return a cheap proxy of `fingerprint` for a large corpus, such as the sizes and times of its files.

        As long as it is unchanged, the fingerprint is not computed again. None: `fingerprint` is cheap, or there is no
        proxy.
        """
        return None

    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes that labels or tags number, in order, if they have names."""
        return ()

    def longer_documents(self, times: int) -> Iterator[Document]:
        """Return validation documents `times` as long as the documents of the splits.

        Called only for a corpus that generates its documents and declares `provides: longer`; others use more text.
        """
        raise NotImplementedError

    def skipped_inputs(self) -> dict[str, int]:
        """Return the number of skipped inputs by reason; reported before training starts."""
        return {}
