"""The language reference that ships inside CPython."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_text.reference import Reference


@final
class PythonDocs(Corpus):
    """The topics of `pydoc_data`, about 65 thousand words that are on every machine with Python; one document a topic.

    It differs from one Python to the next, which its fingerprint tells. Topics repeat each other's sections: a
    paragraph stays in the smallest topic that has it, or text held out would stand in the training split as well. It
    ranks mechanisms; it does not show scaling.
    """

    traits: ClassVar[Traits] = {"provides": ["sentences", "documents"]}

    def __init__(
        self,
        *,
        docstrings: Annotated[bool, "add the standard library's docstrings, a document a module"] = False,
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
