"""Which words of a text are code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_text.derived import Derived, prose, words
from paribus_text.reference import Reference, Topic

_QUOTED: Final = re.compile(r'"([^"]+)"')


@final
class CodeWords(Corpus):
    """Paragraphs of `python-docs` word by word, each tagged as prose, 0, or as code, 1.

    In the reference, code within prose stands in quotes: they say what is code, and are taken away. About a sixth of
    the words are code; a few are names of people's own that stood in quotes as well. Split by topic.
    """

    traits: ClassVar[Traits] = {"provides": ["documents", "tags"], "tells": {"classes": 2}}

    def __init__(
        self,
        *,
        docstrings: Annotated[bool, "add the standard library's docstrings"] = False,
        held_out: Annotated[float, "share of the text held out for validation", Range(above=0, high=0.5)] = 0.2,
    ) -> None:
        self._derived = Derived(Reference(held_out, docstrings=docstrings), self._made, __file__, docstrings)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._derived.documents(split)

    def classes(self) -> tuple[str, ...]:
        return ("prose", "code")

    def fingerprint(self) -> str:
        return self._derived.fingerprint()

    def skipped_inputs(self) -> dict[str, int]:
        return self._derived.dropped()

    def _made(self, topics: tuple[Topic, ...], dropped: Counter[str]) -> Iterator[Document]:
        for topic, paragraph in prose(topics):
            text = " ".join(paragraph.sentences)
            if text.count('"') % 2 or '""' in text:
                dropped["paragraphs whose quotes do not match"] += 1
                continue
            pieces = enumerate(_QUOTED.split(text))  # every second one stood in quotes
            tagged = [(word, place % 2) for place, piece in pieces for word in words(piece)]
            if any(tag for _, tag in tagged):
                yield Document(topic.name, tuple(word for word, _ in tagged), labels=tuple(tag for _, tag in tagged))
            else:
                dropped["paragraphs without code"] += 1
