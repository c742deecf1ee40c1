"""Classification corpus: the part of the language reference that a paragraph belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_text.derived import DerivedCorpus, prose
from paribus_text.reference import Reference, Topic

SECTIONS: Final[Mapping[str, str]] = {
    "data model": "attribute-access callable-types context-managers customization numeric-types objects sequence-types "
    "specialnames types bltin-code-objects bltin-ellipsis-object bltin-null-object bltin-type-objects specialattrs",
    "execution": "dynamic-features exceptions execmodel naming import",
    "expressions": "atom-identifiers atom-literals attribute-references await binary bitwise booleans calls "
    "comparisons conversions exprlists in lambda lists dict operator-summary power shifting slicings subscriptions "
    "unary",
    "lexical analysis": "floating id-classes identifiers imaginary integers numbers strings",
    "statements": "assert assignment async augassign break class compound continue del else for function global if "
    "nonlocal pass raise return try while with yield",
    "types": "formatstrings string-methods truth typesfunctions typesmapping typesmethods typesmodules typesseq "
    "typesseq-mutable typesset",
}
"""The topics of each class, which is a part of the reference."""

_SECTION_OF_TOPIC: Final = {topic: section for section, topics in SECTIONS.items() for topic in topics.split()}


@final
class Sections(Corpus):
    """Paragraphs of `python-docs`, labelled with one of six parts of the reference.

    About 1,000 paragraphs. Whole topics are held out, about the same share of the text of each class; the classes
    contain between a twentieth and a third of the paragraphs.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "labels"], "document_facts": {"classes": 6}}

    def __init__(
        self,
        *,
        held_out: Annotated[float, "share of each class held out for validation", Range(above=0, high=0.5)] = 0.2,
        words: Annotated[int, "minimum number of words of a paragraph", Range(1, 1000)] = 8,
    ) -> None:
        self._words = words
        self._derived = DerivedCorpus(
            Reference(held_out, group=lambda name: _SECTION_OF_TOPIC.get(name, "")), self._make, __file__, words
        )

    def documents(self, split: Split) -> Iterator[Document]:
        return self._derived.documents(split)

    def classes(self) -> tuple[str, ...]:
        return tuple(SECTIONS)

    def fingerprint(self) -> str:
        return self._derived.fingerprint()

    def skipped_inputs(self) -> dict[str, int]:
        return self._derived.skipped_inputs()

    def _make(self, topics: tuple[Topic, ...], dropped: Counter[str]) -> Iterator[Document]:
        numbers = {name: number for number, name in enumerate(SECTIONS)}
        for topic, paragraph in prose(topics):
            if topic.name not in _SECTION_OF_TOPIC:
                dropped["paragraphs of topics without a section"] += 1
            elif sum(len(sentence.split()) for sentence in paragraph.sentences) < self._words:
                dropped[f"paragraphs of fewer than {self._words} words"] += 1
            else:
                section = _SECTION_OF_TOPIC[topic.name]
                yield Document(f"{topic.name}, {section}", paragraph.sentences, labels=(numbers[section],))
