"""The language reference that ships inside CPython."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, ClassVar, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_text.docstrings import docstrings as read_docstrings
from paribus_text.holding import digest, hold_out
from paribus_text.sentences import paragraphs, sentences

_UNDERLINE = re.compile(r"\n[*=\-~^\"']{3,}[ \t]*(?=\n|$)")
_HYPHEN = re.compile(r"(?<=[a-z]-)\n\s*(?=[a-z])")  # a line broken inside of a compound word
_LONG = 60  # characters from which a paragraph that comes again is no coincidence


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
        self._docstrings = docstrings
        self._share = held_out
        self._read: Mapping[Split, tuple[Document, ...]] | None = None
        self._repeated = 0

    def documents(self, split: Split) -> Iterator[Document]:
        yield from self._splits()[split]

    def fingerprint(self) -> str:
        """Of the topics as they ship and of the code that reads them: quicker than reading them."""
        texts = self._texts()
        code = (path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py")))
        return digest([str(self._share), *(text for name in sorted(texts) for text in (name, texts[name])), *code])

    def dropped(self) -> dict[str, int]:
        self._splits()
        return {"paragraphs that repeat another topic's": self._repeated}

    def _splits(self) -> Mapping[Split, tuple[Document, ...]]:
        if self._read is None:
            documents = self._distinct(self._texts())
            held = hold_out({it.name: len(it.text) for it in documents}, self._share)
            self._read = {
                "train": tuple(it for it in documents if it.name not in held),
                "val": tuple(it for it in documents if it.name in held),
            }
        return self._read

    def _texts(self) -> dict[str, str]:
        from pydoc_data.topics import topics

        texts = {name: text.replace("\r\n", "\n") for name, text in topics.items()}
        return texts | read_docstrings() if self._docstrings else texts

    def _distinct(self, texts: Mapping[str, str]) -> list[Document]:
        """A document for each text, in the order of their names; a paragraph that repeats is left out."""
        seen: set[str] = set()
        found: list[Document] = []
        for name in sorted(texts, key=lambda name: (len(texts[name]), name)):
            kept: list[str] = []
            for paragraph in paragraphs(_UNDERLINE.sub("", texts[name])):
                key = " ".join(paragraph.split())
                if key in seen:
                    self._repeated += 1
                    continue
                if len(key) >= _LONG:
                    seen.add(key)
                kept.extend(_sentences(paragraph))
            if kept:
                found.append(Document(name, tuple(kept)))
        return sorted(found, key=lambda document: document.name)


def _sentences(paragraph: str) -> list[str]:
    """Prose as its sentences; a block of code or of grammar is one, with its lines kept."""
    lines = paragraph.rstrip().splitlines()
    if "::=" not in paragraph and _wrapped(lines):
        return sentences(_HYPHEN.sub("", paragraph))
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    return ["\n".join(line[indent:].rstrip() for line in lines)]


def _wrapped(lines: list[str], width: int = 64) -> bool:
    """Whether lines were broken because they were full, as those of prose are, and those of code are not."""
    return all(len(line) + 1 + len(following.split()[0]) > width for line, following in pairwise(lines))
