"""Shared parts of corpora derived from the language reference: distinct texts, keyed random choices, and words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar, final

from paribus import Document, Split, code_fingerprint
from paribus_text.holdout import digest, text_hash
from paribus_text.reference import Paragraph, Reference, Topic

_SPLITS: tuple[Split, ...] = ("train", "val")
_WORD = re.compile(r"\w+(?:[.'\u2019-]\w+)*|[^\w\s]")
_PROSE = re.compile(r"[.!?:][\"')\]]*$")

T = TypeVar("T")
Make = Callable[[tuple[Topic, ...], Counter[str]], Iterable[Document]]


@final
class DerivedCorpus:
    """Documents that `make` derives from the topics of a split, without repeated texts in or across splits.

    `make` counts what it drops by reason. `options` and the file that defines `make` are part of the fingerprint.
    """

    def __init__(self, reference: Reference, make: Make, file: str, *options: object) -> None:
        self._reference = reference
        self._make = make
        self._fingerprint_parts = (
            *map(str, options),
            *code_fingerprint(file, __file__),
        )
        self._cache: Mapping[Split, tuple[Document, ...]] | None = None
        self._dropped: Counter[str] = Counter()

    def documents(self, split: Split) -> Iterator[Document]:
        if self._cache is None:
            texts: set[str] = set()
            self._cache = {name: tuple(self._distinct(name, texts)) for name in _SPLITS}
        yield from self._cache[split]

    def fingerprint(self) -> str:
        return self._reference.fingerprint(*self._fingerprint_parts)

    def skipped_inputs(self) -> dict[str, int]:
        next(self.documents("train"), None)
        return {"paragraphs that repeat another topic's": self._reference.repeated(), **self._dropped}

    def _distinct(self, split: Split, texts: set[str]) -> Iterator[Document]:
        for document in self._make(self._reference.topics(split), self._dropped):
            if document.text in texts:
                self._dropped["texts that repeat another"] += 1
            else:
                texts.add(document.text)
                yield document


def random_below(high: int, *key: object) -> int:
    """Return an integer in [0, high) that depends on the key only."""
    return int(digest(map(str, key))[:15], 16) % high


def shuffled(items: Iterable[T], *key: object) -> list[T]:
    """Return the items in an order that depends on the key only."""
    numbered = list(enumerate(items))
    order = sorted(range(len(numbered)), key=lambda number: text_hash(" ".join(map(str, (*key, number)))))
    return [numbered[number][1] for number in order]


def prose(topics: Iterable[Topic]) -> Iterator[tuple[Topic, Paragraph]]:
    """Yield paragraphs of prose; one without a final punctuation mark may be a heading or code, and is skipped."""
    for topic in topics:
        for paragraph in topic.paragraphs:
            if not paragraph.code and _PROSE.search(paragraph.sentences[-1]):
                yield topic, paragraph


def words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text."""
    return _WORD.findall(text)
