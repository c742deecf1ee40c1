"""Encode documents to arrays of ids, one part of a corpus at a time."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain, islice
from typing import Any, Final, NamedTuple, final

import numpy as np

from paribus.errors import DataError, Problem
from paribus.slots.corpus import Document, Split
from paribus.slots.tokenizer import Tokenizer, Vocabulary

SPLITS: Final[tuple[Split, ...]] = ("train", "val")
KEY: Final = 16  # bytes of the key of a document's text; equal texts have equal keys
_BATCH: Final = 256  # number of documents that are encoded and reported together
PIECE: Final = 1 << 20  # characters that a tokenizer encodes at once; what it returns takes 700 bytes for each token
CONTEXT: Final = 256  # characters on each side of a cut that are encoded together, to check it
CUTS: Final = 16  # places that are tried
_GAP: Final = re.compile(r"(?<=\S)[\n ](?=\S)")

Progress = Callable[[str, int], None]  # stage (tokenizer, train, val) and number of documents
Array = np.ndarray[Any, np.dtype[Any]]


class FlatDocuments(NamedTuple):
    """One side of consecutive documents, as ids and lengths."""

    ids: Array
    sentences: Array  # number of ids in each sentence
    documents: Array  # number of sentences in each document
    languages: Array  # of each document, as `Part.languages` numbers them
    labels: Array  # of all documents, concatenated
    labelled: Array  # number of labels of each document


class Part(NamedTuple):
    """Encoded documents of one split."""

    sides: tuple[FlatDocuments, ...]  # two for a corpus of pairs, otherwise one
    keys: Array  # (documents, KEY) uint8, of their texts
    languages: tuple[str, ...]  # in order of first appearance
    dropped: Mapping[str, int]  # number of skipped documents, by reason
    bytes: int = 0  # of the text of the first side, in UTF-8
    lost: int = 0  # of these bytes, those that decoding does not restore, if they were counted


def encode(documents: Sequence[Document], tokenizer: Tokenizer, *, paired: bool, count_lost: bool = False) -> Part:
    """Encode documents; with `paired`, each document must have a target side, and otherwise none may have one."""
    vocabulary = tokenizer.vocabulary()
    source, target = _FlatBuilder(vocabulary), _FlatBuilder(vocabulary)
    reserved = vocabulary.reserved
    languages: dict[str, int] = {}
    dropped: Counter[str] = Counter()
    keys: list[bytes] = []
    length = lost = 0
    for batch in batches(iter(documents)):
        rows = encode_sentences(tokenizer, [document.sentences for document in batch])
        target_rows = encode_sentences(tokenizer, [document.target for document in batch])
        for document, row, target_row in zip(batch, rows, target_rows, strict=True):
            reason = _unfit(document, row, target_row, paired)
            if reason:
                dropped[reason] += 1
                continue
            language = languages.setdefault(document.language, len(languages))
            source.add(document.name, row, language, document.labels)
            if paired:
                language = languages.setdefault(document.target_language, len(languages))
                target.add(f"{document.name}, target", target_row, language)
            keys.append(_key(document))
            text = _text(document.sentences)
            length += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
            lost += lost_bytes(tokenizer, text, [*chain(*row)], reserved) if count_lost else 0
        source.flush()
        target.flush()
    sides = (source.flat(), target.flat()) if paired else (source.flat(),)
    key_array = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY)
    return Part(sides, key_array, tuple(languages), dropped, length, lost)


def is_paired(documents: Iterable[Document], tokenizer: Tokenizer) -> bool:
    """Return True if documents have two sides; the first document with text decides for all."""
    for document in documents:
        if _has_ids(document.sentences, tokenizer):
            return _has_ids(document.target, tokenizer)
    return False


def _has_ids(sentences: Sequence[str], tokenizer: Tokenizer) -> bool:
    pieces = (piece for sentence in sentences if sentence.strip() for piece in pieces_of(sentence, tokenizer))
    return any(tokenizer.encode_batch([piece])[0] for piece in pieces)


def batches(documents: Iterator[Document], size: int = _BATCH) -> Iterator[list[Document]]:
    while batch := list(islice(documents, size)):
        yield batch


def with_progress(documents: Iterable[Document], stage: str, progress: Progress) -> Iterator[Document]:
    """Yield the documents, and report their number to `progress`."""
    done = 0
    for document in documents:
        yield document
        done += 1
        if done % _BATCH == 0:
            progress(stage, done)
    progress(stage, done)


def encode_sentences(tokenizer: Tokenizer, texts: Sequence[Sequence[str]]) -> list[list[Sequence[int]]]:
    """Return the ids of each sentence of each text, without blank sentences and those without ids."""
    nonblank = [[sentence for sentence in text if sentence.strip()] for text in texts]
    ids = _encoded(
        tokenizer, [" " * (index > 0) + sentence for sentences in nonblank for index, sentence in enumerate(sentences)]
    )
    return [[row for row in islice(ids, len(sentences)) if row] for sentences in nonblank]


def _encoded(tokenizer: Tokenizer, sentences: Sequence[str]) -> Iterator[Sequence[int]]:
    """Yield the ids of each sentence. At most `PIECE` characters are encoded at once, where a sentence can be cut."""
    group: list[str] = []
    size = 0
    for sentence in sentences:
        if group and size + len(sentence) > PIECE:
            yield from tokenizer.encode_batch(group)
            group, size = [], 0
        if len(sentence) > PIECE:
            ids = array("q")  # a list takes 36 bytes for each id
            for piece in pieces_of(sentence, tokenizer):
                ids.extend(tokenizer.encode_batch([piece])[0])
            yield ids
        else:
            group.append(sentence)
            size += len(sentence)
    if group:
        yield from tokenizer.encode_batch(group)


def pieces_of(text: str, tokenizer: Tokenizer | None) -> Iterator[str]:
    """Yield a long text in pieces that have the ids of the whole, as far as `CONTEXT` around each cut shows.

    Without a tokenizer, which is still to be trained, the text is cut between any two words.
    """
    start = 0
    while len(text) - start > PIECE:
        places = _places(text, start)
        end = next((place for place in places if tokenizer is None or _separates(place, text, tokenizer)), None)
        if end is None:
            break
        yield text[start:end]
        start = end
    yield text[start:]


def _places(text: str, start: int) -> Iterator[int]:
    """Yield the last line breaks of a piece between two words, and then its last spaces."""
    places = [match.start() for match in _GAP.finditer(text, start + 1, start + PIECE)]
    for separator in "\n ":
        yield from [place for place in reversed(places) if text[place] == separator][:CUTS]


def _separates(place: int, text: str, tokenizer: Tokenizer) -> bool:
    left, right = text[max(0, place - CONTEXT) : place], text[place : place + CONTEXT]
    first, second, both = tokenizer.encode_batch([left, right, left + right])
    return [*first, *second] == [*both]


def dropped_summary(dropped: Mapping[str, int]) -> str:
    """Describe the numbers of skipped documents by reason; empty if there are none."""
    return "; ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)


def _unfit(document: Document, row: Sequence[object], target_row: Sequence[object], paired: bool) -> str:
    """Return the reason to skip a document, or an empty string."""
    if not row:
        return "documents without a sentence"
    if bool(target_row) != paired:
        return "documents with one side among pairs, or with two among others"
    if document.labels and (len(row), len(target_row)) != (len(document.sentences), len(document.target)):
        return "documents whose labels count a sentence that has no token"
    return ""


def _text(sentences: Sequence[str]) -> str:
    return " ".join(sentence for sentence in sentences if sentence.strip())


def lost_bytes(tokenizer: Tokenizer, text: str, ids: Sequence[int], reserved: frozenset[int]) -> int:
    """Return how many bytes of a text decoding does not restore, at least; 0 if it restores the text exactly.

    Bytes are counted without their order: those that are missing from the decoded text, or those that it adds, if they
    are more. A special token, such as unk, restores nothing.
    """
    decoded = tokenizer.decode(ids)
    unknown = any(token in reserved for token in ids)
    if decoded == text and not unknown:
        return 0
    original = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    restored = np.frombuffer(decoded.encode("utf-8", "surrogatepass"), np.uint8)
    difference = np.bincount(original, minlength=256) - np.bincount(restored, minlength=256)
    changed = max(int(difference.clip(0).sum()), int((-difference).clip(0).sum()))
    return min(max(changed, 1), len(original))


def _key(document: Document) -> bytes:
    text = "\0".join((document.text, *document.target)) if document.target else document.text
    return sha256(text.encode("utf-8", "surrogatepass")).digest()[:KEY]


@final
class _FlatBuilder:
    """Builder of the flat arrays of one side of a part."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._size = vocabulary.size
        self._kind = np.uint16 if self._size <= 1 << 16 else np.int32
        self._pending: list[Sequence[int]] = []  # sentences of documents that `flush` has not converted
        self._names: list[str] = []  # of these documents
        self._ids: list[Array] = []
        self._sentences: list[int] = []
        self._documents: list[int] = []
        self._languages: list[int] = []
        self._labels: list[tuple[float, ...]] = []

    def add(self, name: str, sentences: Sequence[Sequence[int]], language: int, labels: tuple[float, ...] = ()) -> None:
        self._pending.extend(sentences)
        self._names.append(name)
        self._documents.append(len(sentences))
        self._languages.append(language)
        self._labels.append(labels)

    def flush(self) -> None:
        """Convert the ids of the documents since the last call to an array."""
        sizes = list(map(len, self._pending))
        ids = np.fromiter(chain.from_iterable(self._pending), np.int64, sum(sizes))
        if len(ids) and (ids.min() < 0 or ids.max() >= self._size):
            self._raise_outside(ids, sizes)
        self._ids.append(ids.astype(self._kind))
        self._sentences += sizes
        self._pending.clear()
        self._names.clear()

    def _raise_outside(self, ids: Array, sizes: Sequence[int]) -> None:
        """Raise the error of the first id outside of the vocabulary."""
        place = int(np.flatnonzero((ids < 0) | (ids >= self._size))[0])
        sentences = self._documents[-len(self._names) :]
        ends = np.cumsum(sizes)[np.cumsum(sentences) - 1]
        document = int(np.searchsorted(ends, place, side="right"))
        start = int(ends[document - 1]) if document else 0
        raise _id_outside(self._names[document], place - start, int(ids[place]), self._size)

    def flat(self) -> FlatDocuments:
        ids = np.concatenate(self._ids) if self._ids else np.empty(0, self._kind)
        labels = np.fromiter(chain.from_iterable(self._labels), np.float64)
        counts = (self._sentences, self._documents, self._languages)
        sentences, documents, languages = (np.array(count, np.int64) for count in counts)
        return FlatDocuments(
            ids, sentences, documents, languages, labels, np.array(list(map(len, self._labels)), np.int64)
        )


def _id_outside(name: str, position: int, token: int, size: int) -> DataError:
    message = f"document {name!r} has the id {token} at position {position}, of a vocabulary of {size:,}"
    return DataError(
        Problem(code="id-out-of-range", path="tokenizer", message=message, valid=f"ids from 0 to {size - 1:,}")
    )
