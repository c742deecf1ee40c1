"""Which part of the language reference a paragraph is of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_text.derived import Derived, prose
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
"""The topics of each class: where the reference has them."""

_OF: Final = {topic: section for section, topics in SECTIONS.items() for topic in topics.split()}


@final
class Sections(Corpus):
    """Paragraphs of `python-docs`, each labelled with one of six parts of the reference that its topic stands in.

    About 1,000 paragraphs. Topics are held out, and of each class about the same share of the text; the classes are
    uneven, from a twentieth of the paragraphs to a third.
    """

    traits: ClassVar[Traits] = {"provides": ["documents", "labels"], "tells": {"classes": 6}}

    def __init__(
        self,
        *,
        held_out: Annotated[float, "share of each class held out for validation", Range(above=0, high=0.5)] = 0.2,
        words: Annotated[int, "least words of a paragraph", Range(1, 1000)] = 8,
    ) -> None:
        self._words = words
        self._derived = Derived(Reference(held_out, group=lambda name: _OF.get(name, "")), self._made, __file__, words)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._derived.documents(split)

    def classes(self) -> tuple[str, ...]:
        return tuple(SECTIONS)

    def fingerprint(self) -> str:
        return self._derived.fingerprint()

    def skipped_inputs(self) -> dict[str, int]:
        return self._derived.dropped()

    def _made(self, topics: tuple[Topic, ...], dropped: Counter[str]) -> Iterator[Document]:
        numbers = {name: number for number, name in enumerate(SECTIONS)}
        for topic, paragraph in prose(topics):
            if topic.name not in _OF:
                dropped["paragraphs of topics of no section"] += 1
            elif sum(len(sentence.split()) for sentence in paragraph.sentences) < self._words:
                dropped[f"paragraphs of fewer than {self._words} words"] += 1
            else:
                section = _OF[topic.name]
                yield Document(f"{topic.name}, {section}", paragraph.sentences, labels=(numbers[section],))
