"""Corpus of the language reference of CPython 3.11."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_text.reference import Reference


@final
class PythonDocs(Corpus):
    """The topics of the language reference of CPython 3.11, about 65 thousand words; one document per topic.

    The text is in this package, with its licence, so that it is the same for every version of Python. Topics repeat
    sections of each other: a paragraph remains in the smallest topic that has it, otherwise held-out text would be in
    the training split as well. The corpus is large enough to rank mechanisms, and too small to show scaling.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["sentences", "documents"]}

    def __init__(
        self,
        *,
        docstrings: Annotated[bool, "add the docstrings of the standard library, one document per module"] = False,
        held_out: Annotated[float, "share of the text held out for validation", Range(above=0, high=0.5)] = 0.1,
    ) -> None:
        self._reference = Reference(held_out, docstrings=docstrings)

    def documents(self, split: Split) -> Iterator[Document]:
        for topic in self._reference.topics(split):
            yield Document(topic.name, topic.sentences)

    def fingerprint(self) -> str:
        return self._reference.fingerprint()

    def skipped_inputs(self) -> dict[str, int]:
        return {"paragraphs that repeat another topic's": self._reference.repeated()}
