"""Training and validation splits of documents that are read repeatedly, and the fingerprint of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol, final

from paribus import DataError, Document, Problem, Split
from paribus_text.holdout import digest, hold_out, text_hash
from paribus_text.problems import raise_problems

MAX_CHARACTERS = 1 << 28  # of a validation split in memory; a larger one is read again
SPLITS: tuple[Split, ...] = ("train", "val")


class DocumentReader(Protocol):
    """One reading of documents, and the problems in it."""

    @property
    def option(self) -> str: ...

    @property
    def problems(self) -> list[Problem]: ...

    def documents(self) -> Iterator[Document]: ...


class _Scan(NamedTuple):
    """Result of reading all documents once."""

    held_out: frozenset[str]  # hashes of the held-out texts
    shared: frozenset[str]  # hashes of the texts of the validation split that are dropped from the training split
    fingerprint: str
    dropped: Mapping[str, int]


@final
class Splitting:
    """Splits of the documents that `read(split, dropped)` reads.

    Without files for validation, a part of the training documents is held out by a hash of each text: the same text is
    never in both splits, and neither the order nor the names of files matter. With `drops_shared`, as for published
    splits, training documents that the validation split has too are dropped and counted; otherwise they are an error
    of the engine.
    """

    def __init__(
        self,
        read: Callable[[Split, Counter[str]], DocumentReader],
        *,
        has_validation: bool,
        share: float = 0.1,
        drops_shared: bool = False,
    ) -> None:
        self._read = read
        self._has_validation = has_validation
        self._share = share
        self._drops_shared = drops_shared and has_validation
        self._cache: _Scan | None = None
        self._held_out: list[Document] | None = None  # the validation split, if reading the other one has found it

    def documents(self, split: Split) -> Iterator[Document]:
        if split == "val" and self._held_out is not None:
            yield from self._held_out
            return
        held_out, shared = self._scan()[:2]
        reader = self._read(split if self._has_validation else "train", Counter())
        others: list[Document] = []
        characters = 0
        for document in reader.documents():
            if split == "train" and shared and _hash_text(document) in shared:
                continue
            if self._has_validation or (_hash_text(document) in held_out) == (split == "val"):
                yield document
            elif characters < MAX_CHARACTERS:
                others.append(document)
                characters += len(document.text)
        raise_problems(reader.problems)
        if split == "train" and not self._has_validation and characters < MAX_CHARACTERS:
            self._held_out = others

    def fingerprint(self) -> str:
        self._cache = self._held_out = None  # the files may have changed
        return self._scan().fingerprint

    def skipped_inputs(self) -> dict[str, int]:
        return dict(self._scan().dropped)

    def _scan(self) -> _Scan:
        if self._cache is None:
            dropped: Counter[str] = Counter()
            readers = {split: self._read(split, dropped) for split in SPLITS}
            held_out, shared = self._validation(readers["val"])
            sizes: Counter[str] = Counter()
            hashes: list[str] = []
            for document in readers["train"].documents():
                key = _hash_text(document)
                if key in shared:
                    dropped["training documents that the validation split has too"] += 1
                    continue
                hashes.append(_hash_document(document, key))
                sizes[key] += len(document.text)
            raise_problems(problem for reader in readers.values() for problem in reader.problems)
            _check_count(len(sizes), 1 if self._has_validation else 2, readers["train"].option, dropped)
            if self._has_validation:
                _check_count(len(held_out), 1, readers["val"].option, dropped)
            else:
                held_out = sorted(hold_out(sizes, self._share))
            fingerprint = digest([*hashes, "validation", *held_out])
            self._cache = _Scan(frozenset(held_out), shared, fingerprint, +dropped)
        return self._cache

    def _validation(self, reader: DocumentReader) -> tuple[list[str], frozenset[str]]:
        """Return the hashes of the documents of validation files, and those of the texts to drop elsewhere."""
        hashes: list[str] = []
        shared: set[str] = set()
        for document in reader.documents() if self._has_validation else ():
            key = _hash_text(document)
            hashes.append(_hash_document(document, key))
            if self._drops_shared:
                shared.add(key)
        return hashes, frozenset(shared)


def _hash_text(document: Document) -> str:
    return text_hash("\0".join((document.text, *document.target)) if document.target else document.text)


def _hash_document(document: Document, key: str) -> str:
    """Hash everything that reaches a model; the hash of a document with nothing but a text is its `key`."""
    optional = [f"\0{document.language}"] if document.language else []
    if document.target or document.labels:
        optional += ["\0\0", *document.target, "\0\0", *map(repr, document.labels)]
    if not optional and len(document.sentences) == 1:
        return key
    return text_hash("\0".join((*document.sentences, *optional)))


def _check_count(count: int, minimum: int, option: str, dropped: Mapping[str, int]) -> None:
    if count >= minimum:
        return
    reasons = "; ".join(f"{number:,} {reason}" for reason, number in dropped.items() if number)
    message = f"expected {minimum} or more distinct documents, got {count}"
    message += f" (dropped: {reasons})" if reasons else ""
    valid = "files with text in them"
    if count:
        valid = "another document to hold out: more files, `documents: paragraph`, or files for `validation`"
    raise DataError(Problem(code="no-documents", path=option, message=message, valid=valid))
