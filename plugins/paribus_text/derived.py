"""What the corpora made of the reference share: each text once, draws that are the same everywhere, and words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar, final

from paribus import Document, Split
from paribus_text.holding import digest, hashed
from paribus_text.reference import Paragraph, Reference, Topic

_SPLITS: tuple[Split, ...] = ("train", "val")
_WORD = re.compile(r"\w+(?:[.'\u2019-]\w+)*|[^\w\s]")
_PROSE = re.compile(r"[.!?:][\"')\]]*$")

T = TypeVar("T")
Make = Callable[[tuple[Topic, ...], Counter[str]], Iterable[Document]]


@final
class Derived:
    """Documents made of the topics of a split. One whose text came before, in this split or in the other, is left out.

    `make` counts what it leaves out by reason. `options` and the file that `make` stands in are of the fingerprint.
    """

    def __init__(self, reference: Reference, make: Make, file: str, *options: object) -> None:
        self._reference = reference
        self._make = make
        self._said = (*map(str, options), *(Path(path).read_text(encoding="utf-8") for path in (file, __file__)))
        self._made: Mapping[Split, tuple[Document, ...]] | None = None
        self._dropped: Counter[str] = Counter()

    def documents(self, split: Split) -> Iterator[Document]:
        if self._made is None:
            seen: set[str] = set()
            self._made = {name: tuple(self._distinct(name, seen)) for name in _SPLITS}
        yield from self._made[split]

    def fingerprint(self) -> str:
        return self._reference.fingerprint(*self._said)

    def dropped(self) -> dict[str, int]:
        next(self.documents("train"), None)
        return {"paragraphs that repeat another topic's": self._reference.repeated(), **self._dropped}

    def _distinct(self, split: Split, seen: set[str]) -> Iterator[Document]:
        for document in self._make(self._reference.topics(split), self._dropped):
            if document.text in seen:
                self._dropped["texts that repeat another"] += 1
            else:
                seen.add(document.text)
                yield document


def below(high: int, *key: object) -> int:
    """A whole number in [0, high) that is the same wherever it is asked for by the same key."""
    return int(digest(map(str, key))[:15], 16) % high


def shuffled(items: Iterable[T], *key: object) -> list[T]:
    """The items in an order that the key decides."""
    numbered = list(enumerate(items))
    order = sorted(range(len(numbered)), key=lambda place: hashed(" ".join(map(str, (*key, place)))))
    return [numbered[place][1] for place in order]


def prose(topics: Iterable[Topic]) -> Iterator[tuple[Topic, Paragraph]]:
    """Paragraphs of sentences. A line that ends like none may be a heading or code, and is left out."""
    for topic in topics:
        for paragraph in topic.paragraphs:
            if not paragraph.code and _PROSE.search(paragraph.sentences[-1]):
                yield topic, paragraph


def words(text: str) -> list[str]:
    """Words, and each mark between them as one of its own."""
    return _WORD.findall(text)
