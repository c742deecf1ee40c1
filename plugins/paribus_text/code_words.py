"""Tagging corpus: words of prose and of code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_text.derived import DerivedCorpus, prose, words
from paribus_text.reference import Reference, Topic

_QUOTED: Final = re.compile(r'"([^"]+)"')


@final
class CodeWords(Corpus):
    """Words of the paragraphs of `python-docs`, tagged as prose, 0, or code, 1.

    The reference quotes code within prose: the quotes give the tags, and are removed. About a sixth of the words are
    code; a few of these are other quoted names. Split by topic.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "tags"], "document_facts": {"classes": 2}}

    def __init__(
        self,
        *,
        docstrings: Annotated[bool, "add the docstrings of the standard library"] = False,
        held_out: Annotated[float, "share of the text held out for validation", Range(above=0, high=0.5)] = 0.2,
    ) -> None:
        self._derived = DerivedCorpus(Reference(held_out, docstrings=docstrings), self._make, __file__, docstrings)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._derived.documents(split)

    def classes(self) -> tuple[str, ...]:
        return ("prose", "code")

    def fingerprint(self) -> str:
        return self._derived.fingerprint()

    def skipped_inputs(self) -> dict[str, int]:
        return self._derived.skipped_inputs()

    def _make(self, topics: tuple[Topic, ...], dropped: Counter[str]) -> Iterator[Document]:
        for topic, paragraph in prose(topics):
            text = " ".join(paragraph.sentences)
            if text.count('"') % 2 or '""' in text:
                dropped["paragraphs whose quotes do not match"] += 1
                continue
            pieces = enumerate(_QUOTED.split(text))  # every second piece was quoted
            tagged = [(word, number % 2) for number, piece in pieces for word in words(piece)]
            if any(tag for _, tag in tagged):
                yield Document(topic.name, tuple(word for word, _ in tagged), labels=tuple(tag for _, tag in tagged))
            else:
                dropped["paragraphs without code"] += 1
