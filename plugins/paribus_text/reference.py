"""Topics of the language reference that ships inside CPython, paragraph by paragraph, each paragraph once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, final

from paribus import Split
from paribus_text.docstrings import docstrings as read_docstrings
from paribus_text.holding import digest, hold_out
from paribus_text.sentences import paragraphs, sentences

_UNDERLINE = re.compile(r"\n[*=\-~^\"']{3,}[ \t]*(?=\n|$)")
_HYPHEN = re.compile(r"(?<=[a-z]-)\n\s*(?=[a-z])")  # a line broken inside of a compound word
_LONG = 60  # characters from which a paragraph that comes again is no coincidence
_FILES = ("reference", "docstrings", "holding", "sentences")  # that decide what is read


class Paragraph(NamedTuple):
    """Prose as its sentences; a block of code or of grammar is one, with its lines kept."""

    sentences: tuple[str, ...]
    code: bool


class Topic(NamedTuple):
    """One text of the reference."""

    name: str
    paragraphs: tuple[Paragraph, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(sentence for paragraph in self.paragraphs for sentence in paragraph.sentences)


@final
class Reference:
    """The topics, split by topic: of each group of them about the same share is held out.

    Topics repeat each other's sections: a paragraph stays in the smallest topic that has it, or text held out would
    stand in the training split as well.
    """

    def __init__(
        self, share: float, *, docstrings: bool = False, group: Callable[[str], str] = lambda name: ""
    ) -> None:
        self._share = share
        self._docstrings = docstrings
        self._group = group
        self._read: Mapping[Split, tuple[Topic, ...]] | None = None
        self._repeated = 0

    def topics(self, split: Split) -> tuple[Topic, ...]:
        if self._read is None:
            found = self._distinct(self._texts())
            held = self._held({topic.name: len(" ".join(topic.sentences)) for topic in found})
            self._read = {
                "train": tuple(topic for topic in found if topic.name not in held),
                "val": tuple(topic for topic in found if topic.name in held),
            }
        return self._read[split]

    def fingerprint(self, *said: str) -> str:
        """Of the topics as they ship, of the code that reads them, and of what is `said` of the rest: quicker than
        reading them."""
        texts = self._texts()
        code = (Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8") for name in _FILES)
        return digest(
            [str(self._share), *said, *(text for name in sorted(texts) for text in (name, texts[name])), *code]
        )

    def repeated(self) -> int:
        """How many paragraphs were left out, as another topic has them."""
        self.topics("train")
        return self._repeated

    def _held(self, sizes: Mapping[str, int]) -> frozenset[str]:
        groups: dict[str, dict[str, int]] = {}
        for name, size in sizes.items():
            groups.setdefault(self._group(name), {})[name] = size
        return frozenset[str]().union(*(hold_out(group, self._share) for group in groups.values()))

    def _texts(self) -> dict[str, str]:
        from pydoc_data.topics import topics

        texts = {name: text.replace("\r\n", "\n") for name, text in topics.items()}
        return texts | read_docstrings() if self._docstrings else texts

    def _distinct(self, texts: Mapping[str, str]) -> list[Topic]:
        """A topic for each text, in the order of their names; a paragraph that repeats is left out."""
        seen: set[str] = set()
        whole: set[tuple[str, ...]] = set()
        found: list[Topic] = []
        for name in sorted(texts, key=lambda name: (len(texts[name]), name)):
            kept: list[Paragraph] = []
            for paragraph in paragraphs(_UNDERLINE.sub("", texts[name])):
                key = " ".join(paragraph.split())
                if key in seen:
                    self._repeated += 1
                    continue
                if len(key) >= _LONG:
                    seen.add(key)
                kept.append(_read(paragraph))
            topic = Topic(name, tuple(kept))
            if topic.sentences in whole:  # of short paragraphs alone, which may come again
                self._repeated += len(kept)
            elif kept:
                whole.add(topic.sentences)
                found.append(topic)
        return sorted(found, key=lambda topic: topic.name)


def _read(paragraph: str) -> Paragraph:
    lines = paragraph.rstrip().splitlines()
    if "::=" not in paragraph and _wrapped(lines):
        return Paragraph(tuple(sentences(_HYPHEN.sub("", paragraph))), code=False)
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    return Paragraph(("\n".join(line[indent:].rstrip() for line in lines),), code=True)


def _wrapped(lines: list[str], width: int = 64) -> bool:
    """Whether lines were broken because they were full, as those of prose are, and those of code are not."""
    return all(len(line) + 1 + len(following.split()[0]) > width for line, following in pairwise(lines))
