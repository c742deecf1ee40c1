"""The two splits of documents that are read again and again: which are held out, and what all of them are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol, final

from paribus import DataError, Document, Problem, Split
from paribus_text.holding import digest, hashed, hold_out
from paribus_text.telling import check

SPLITS: tuple[Split, ...] = ("train", "val")


class Read(Protocol):
    """Documents as they are read, and what was found wrong on the way."""

    @property
    def option(self) -> str: ...

    @property
    def problems(self) -> list[Problem]: ...

    def all(self) -> Iterator[Document]: ...


class _Scan(NamedTuple):
    """What one reading of everything found."""

    held: frozenset[str]  # hashes of the texts that are held out
    fingerprint: str
    dropped: Mapping[str, int]


@final
class Splitting:
    """`read(split, dropped)` reads a split; where there is none of its own to validate on, a part of the first is held
    out by a hash of each text: the same text is never in both, and neither order nor names matter."""

    def __init__(self, read: Callable[[Split, Counter[str]], Read], *, own: bool, share: float) -> None:
        self._read = read
        self._own = own  # whether there are documents of their own to validate on
        self._share = share
        self._scanned: _Scan | None = None

    def documents(self, split: Split) -> Iterator[Document]:
        held = self._scan().held
        reading = self._read(split if self._own else "train", Counter())
        for document in reading.all():
            if self._own or (_text(document) in held) == (split == "val"):
                yield document
        check(reading.problems)

    def fingerprint(self) -> str:
        self._scanned = None  # always of what there is now
        return self._scan().fingerprint

    def dropped(self) -> dict[str, int]:
        return dict(self._scan().dropped)

    def _scan(self) -> _Scan:
        if self._scanned is None:
            dropped: Counter[str] = Counter()
            read = {split: self._read(split, dropped) for split in SPLITS}
            sizes: Counter[str] = Counter()
            kept: list[str] = []
            for document in read["train"].all():
                kept.append(_key(document))
                sizes[_text(document)] += len(document.text)
            kept.append("validation")
            held = [_key(document) for document in read["val"].all()] if self._own else []
            check(problem for each in read.values() for problem in each.problems)
            if self._own:
                _enough(len(sizes), 1, read["train"].option, dropped)
                _enough(len(held), 1, read["val"].option, dropped)
            else:
                _enough(len(sizes), 2, read["train"].option, dropped)
                held = sorted(hold_out(sizes, self._share))
            self._scanned = _Scan(frozenset(held), digest([*kept, *held]), +dropped)
        return self._scanned


def _text(document: Document) -> str:
    return hashed("\0".join((document.text, *document.target)))


def _key(document: Document) -> str:
    """All that becomes of a document; without a language, another side and labels, as it was before there were any."""
    more = [f"\0{document.language}"] if document.language else []
    if document.target or document.labels:
        more += ["\0\0", *document.target, "\0\0", *map(repr, document.labels)]
    return hashed("\0".join((*document.sentences, *more)))


def _enough(found: int, least: int, option: str, dropped: Mapping[str, int]) -> None:
    if found >= least:
        return
    left_out = "; ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    count = "no document" if not found else "only one document that differs from the others"
    what = f"there is {count} to read" + (f" (left out: {left_out})" if left_out else "")
    valid = "files with text in them"
    if found:
        valid = "a second one to hold out: more files, `documents: paragraph`, or files for `validation`"
    raise DataError(Problem(code="no-documents", path=option, message=what, valid=valid))
