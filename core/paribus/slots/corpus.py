"""The slot `corpus`: documents, and which of them are held out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal, NamedTuple

from paribus.slots.component import Component, Traits

Split = Literal["train", "val"]


class Document(NamedTuple):
    """One text, as its sentences in order (joined by a space they are the text), or two that belong together.

    What there is to be told of it is in `labels`, and a corpus says in its traits what they are: `labels` for one whole
    number, the class; `scores` for one number; `tags` for a whole number a sentence, each of which is a word;
    `answers` for the first and the last sentence of the target that answer, -1 and -1 where none does.
    """

    name: str  # what an error calls it: a path and a line, a topic
    sentences: tuple[str, ...]
    target: tuple[str, ...] = ()  # of a pair: the other side's sentences
    language: str = ""  # of the sentences, where a corpus tells them apart
    labels: tuple[float, ...] = ()
    target_language: str = ""

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


class CorpusTraits(Traits, total=False):
    """Traits of a corpus."""

    provides: list[str]  # contents of its documents: sentences, documents, pairs, labels, …
    provides_if: dict[str, str]  # content -> option without which the corpus does not provide it
    document_facts: dict[str, int | str]  # name -> number that describes its documents, or the option that has it
    modality: Literal["text", "images"]  # default: text


class Corpus(Component, ABC):
    """Yields documents in a fixed order, split by document. It imports no torch."""

    traits: ClassVar[CorpusTraits] = {}

    @abstractmethod
    def documents(self, split: Split) -> Iterator[Document]:
        """The documents of a split, always in the same order; the two splits share none."""

    @abstractmethod
    def fingerprint(self) -> str:
        """sha256 of all that decides what `documents` yields: contents, not paths or times."""

    def quick_fingerprint(self) -> str | None:
        """What is known of a large corpus without reading it, such as sizes and times of files: as long as that is the
        same, so is the fingerprint. None: it is quick to read, or nothing short of reading tells."""
        return None

    def classes(self) -> tuple[str, ...]:
        """The names of what labels or tags number, in their order, where they have names."""
        return ()

    def longer_documents(self, times: int) -> Iterator[Document]:
        """Documents `times` as long as those of the splits, and held out like those of `val`.

        Asked of a corpus that draws its documents and says so (`provides: longer`); of another, more text is taken.
        """
        raise NotImplementedError

    def skipped_inputs(self) -> dict[str, int]:
        """How many inputs were left out, by reason; told before training starts."""
        return {}
