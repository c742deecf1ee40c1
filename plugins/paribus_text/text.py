"""The user's own text files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, final

from paribus import Corpus, DataError, Document, Example, Problem, Range, Split, Traits
from paribus_text.files import Reading, Unit, check
from paribus_text.glancing import glance
from paribus_text.holding import digest, hashed, hold_out

_SPLITS: tuple[Split, ...] = ("train", "val")


class _Scan(NamedTuple):
    """What one reading of all the files found."""

    held: frozenset[str]  # hashes of the texts that are held out
    fingerprint: str
    dropped: Mapping[str, int]


@final
class Text(Corpus):
    """Files of plain text, of Markdown and of JSON lines, named by patterns (`data/**/*.txt`).

    A line of a `.jsonl` file is a document; of the other kinds a file is, or a paragraph. Without files of its own, the
    validation split is chosen by a hash of each document's text: the same text is never in both splits, and neither the
    order nor the names of the files matter.
    """

    traits: ClassVar[Traits] = {"provides": ["sentences", "documents"]}

    def __init__(
        self,
        *,
        path: Annotated[tuple[str, ...], "patterns of .txt, .md and .jsonl files", Example(("corpus/**/*.txt",))],
        validation: Annotated[tuple[str, ...] | None, "patterns of the validation split's files"] = None,
        held_out: Annotated[float, "share held out, where `validation` is null", Range(above=0, high=0.5)] = 0.1,
        documents: Annotated[Unit, "what one document is, in a file that is not JSON lines"] = "file",
        field: Annotated[str, "the field of a JSON line that holds the text"] = "text",
        languages: Annotated[bool, "whether the folder that a file lies in is its language (de/news.txt)"] = False,
    ) -> None:
        self._path = path
        self._validation = validation
        self._share = held_out
        self._unit = documents
        self._field = field
        self._languages = languages
        self._scanned: _Scan | None = None

    def documents(self, split: Split) -> Iterator[Document]:
        held = self._scan().held
        reading = self._reading("train" if self._validation is None else split, Counter())
        for document in reading.all():
            if self._validation is not None or (hashed(document.text) in held) == (split == "val"):
                yield document
        check(reading)

    def fingerprint(self) -> str:
        self._scanned = None  # always of what the files hold now
        return self._scan().fingerprint

    def glance(self) -> str | None:
        options = [self._path, self._validation, self._share, self._unit, self._field, self._languages, str(Path.cwd())]
        return glance(options, (path for split in _SPLITS for path in self._reading(split, Counter()).matching()))

    def dropped(self) -> dict[str, int]:
        return dict(self._scan().dropped)

    def _reading(self, split: Split, dropped: Counter[str]) -> Reading:
        option, patterns = "corpus.path", self._path
        if split == "val":
            option, patterns = "corpus.validation", self._validation or ()
        return Reading(option, patterns, self._unit, self._field, self._languages, [], dropped)

    def _scan(self) -> _Scan:
        if self._scanned is None:
            dropped: Counter[str] = Counter()
            read = {split: self._reading(split, dropped) for split in _SPLITS}
            sizes: Counter[str] = Counter()
            kept: list[str] = []
            for document in read["train"].all():
                kept.append(_key(document))
                sizes[hashed(document.text)] += len(document.text)
            kept.append("validation")
            held = [_key(document) for document in read["val"].all()]
            check(*read.values())
            if self._validation is None:
                _enough(len(sizes), 2, "corpus.path", dropped)
                held = sorted(hold_out(sizes, self._share))
            else:
                _enough(len(sizes), 1, "corpus.path", dropped)
                _enough(len(held), 1, "corpus.validation", dropped)
            self._scanned = _Scan(frozenset(held), digest([*kept, *held]), +dropped)
        return self._scanned


def _key(document: Document) -> str:
    """All that becomes of a document; without a language, as it was before there were any."""
    return hashed("\0".join((*document.sentences, *([f"\0{document.language}"] if document.language else []))))


def _enough(found: int, least: int, option: str, dropped: Mapping[str, int]) -> None:
    if found >= least:
        return
    left_out = "; ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    count = "no document" if not found else "only one document that differs from the others"
    what = f"there is {count} to read" + (f" (left out: {left_out})" if left_out else "")
    valid = "files with text in them"
    if found:
        valid = "a second one to hold out: more files, `documents: paragraph`, or files for `validation`"
    raise DataError(Problem(code="no-documents", path=option, what=what, valid=valid))
