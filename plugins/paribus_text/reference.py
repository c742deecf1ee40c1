"""Topics of the language reference of CPython 3.11, as paragraphs, without repetitions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, final

from paribus import Split, code_fingerprint
from paribus_text.frozen_text import read_frozen_text
from paribus_text.holdout import digest, hold_out
from paribus_text.sentences import paragraphs, sentences

_UNDERLINE = re.compile(r"\n[*=\-~^\"']{3,}[ \t]*(?=\n|$)")
_HYPHEN = re.compile(r"(?<=[a-z]-)\n\s*(?=[a-z])")  # a line break within a compound word
_MINIMUM_REPEAT = 60  # characters; a shorter paragraph may repeat by chance
_FILES = ("reference", "frozen_text", "holdout", "sentences")  # whose code determines the text


class Paragraph(NamedTuple):
    """Sentences of prose, or a block of code or grammar as one sentence that keeps its lines."""

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
    """The topics, split by topic: about the same share of each group is held out.

    Topics repeat sections of each other: a paragraph remains in the smallest topic that has it, otherwise held-out text
    would be in the training split as well.
    """

    def __init__(
        self, share: float, *, docstrings: bool = False, group: Callable[[str], str] = lambda name: ""
    ) -> None:
        self._share = share
        self._docstrings = docstrings
        self._group = group
        self._cache: Mapping[Split, tuple[Topic, ...]] | None = None
        self._repeated = 0

    def topics(self, split: Split) -> tuple[Topic, ...]:
        if self._cache is None:
            topics = self._distinct(self._texts())
            held_out = self._hold_out({topic.name: len(" ".join(topic.sentences)) for topic in topics})
            self._cache = {
                "train": tuple(topic for topic in topics if topic.name not in held_out),
                "val": tuple(topic for topic in topics if topic.name in held_out),
            }
        return self._cache[split]

    def fingerprint(self, *options: str) -> str:
        """Return a hash of the topics, of the code that reads them, and of `options`: quicker than reading them."""
        texts = self._texts()
        code = code_fingerprint(*(Path(__file__).with_name(f"{name}.py") for name in _FILES))
        return digest(
            [str(self._share), *options, *(text for name in sorted(texts) for text in (name, texts[name])), *code]
        )

    def repeated(self) -> int:
        """Return the number of paragraphs that were dropped because another topic has them."""
        self.topics("train")
        return self._repeated

    def _hold_out(self, sizes: Mapping[str, int]) -> frozenset[str]:
        groups: dict[str, dict[str, int]] = {}
        for name, size in sizes.items():
            groups.setdefault(self._group(name), {})[name] = size
        return frozenset[str]().union(*(hold_out(group, self._share) for group in groups.values()))

    def _texts(self) -> dict[str, str]:
        names = ("topics", "docstrings") if self._docstrings else ("topics",)
        return {name: text for file in names for name, text in read_frozen_text(file).items()}

    def _distinct(self, texts: Mapping[str, str]) -> list[Topic]:
        """Return a topic for each text, sorted by name, without repeated paragraphs."""
        paragraph_keys: set[str] = set()
        topic_keys: set[tuple[str, ...]] = set()
        distinct_topics: list[Topic] = []
        for name in sorted(texts, key=lambda name: (len(texts[name]), name)):
            retained: list[Paragraph] = []
            for paragraph in paragraphs(_UNDERLINE.sub("", texts[name])):
                key = " ".join(paragraph.split())
                if key in paragraph_keys:
                    self._repeated += 1
                    continue
                if len(key) >= _MINIMUM_REPEAT:
                    paragraph_keys.add(key)
                retained.append(_parse(paragraph))
            topic = Topic(name, tuple(retained))
            if topic.sentences in topic_keys:  # only short paragraphs, which may repeat
                self._repeated += len(retained)
            elif retained:
                topic_keys.add(topic.sentences)
                distinct_topics.append(topic)
        return sorted(distinct_topics, key=lambda topic: topic.name)


def _parse(paragraph: str) -> Paragraph:
    lines = paragraph.rstrip().splitlines()
    if "::=" not in paragraph and _is_wrapped(lines):
        return Paragraph(tuple(sentences(_HYPHEN.sub("", paragraph))), code=False)
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    return Paragraph(("\n".join(line[indent:].rstrip() for line in lines),), code=True)


def _is_wrapped(lines: list[str], width: int = 64) -> bool:
    """Return True if lines are full, as those of wrapped prose are, and those of code are not."""
    return all(len(line) + 1 + len(next_line.split()[0]) > width for line, next_line in pairwise(lines))
