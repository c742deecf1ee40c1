"""A corpus and a tokenizer, to arrays of ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, NamedTuple, final

import numpy as np

from paribus.durable import digest
from paribus.errors import DataError, Problem
from paribus.slots.corpus import Corpus, Document, Split
from paribus.slots.tokenizer import Tokenizer, Vocabulary

SPLITS: Final[tuple[Split, ...]] = ("train", "val")
_BATCH: Final = 256  # documents that are encoded, and reported, at a time

Progress = Callable[[str, int], None]  # what is being read (tokenizer, train, val), and how many documents of it
Array = np.ndarray[Any, Any]


class Arrays(NamedTuple):
    """One side of one split, as `Tokens` has it."""

    ids: Array
    sentences: Array
    documents: Array
    languages: Array  # of each document; empty where no document of the corpus says its own
    labels: Array  # of all documents, one behind the other
    labelled: Array  # document d has labels[labelled[d] : labelled[d + 1]]; empty where none has any


@final
@dataclass(frozen=True)
class Made:
    """What became of a corpus."""

    sides: Mapping[str, Arrays]  # train, val; of a corpus of pairs also "train targets", "val targets"
    dropped: Mapping[str, int]  # how many inputs were left out, by reason
    overlap: int  # documents of the validation split whose text the training split has as well
    held: int  # documents of the validation split
    languages: tuple[str, ...] = ()  # in the order in which they came, where there is more than one
    classes: tuple[str, ...] = ()  # the names of what labels number


def encode(
    corpus: Corpus, tokenizer: Tokenizer, size: int | None, progress: Progress, learned: bytes | None = None
) -> Made:
    """Trains the tokenizer on the training split, unless it has `learned` before, and encodes both."""
    if learned is None:
        tokenizer.train(_texts(corpus, progress), size)
    else:
        tokenizer.load(learned)
    dropped: Counter[str] = Counter()
    sides: dict[str, Arrays] = {}
    keys: dict[Split, list[bytes]] = {}
    languages: dict[str, int] = {}
    for split in SPLITS:
        made, keys[split] = _gather(corpus, tokenizer, split, languages, dropped, progress)
        if not keys[split]:
            raise _nothing(split, {**corpus.dropped(), **dropped})
        sides |= made
    held = len(keys["val"])
    if len(languages) < 2:
        languages, sides = {}, {name: side._replace(languages=side.languages[:0]) for name, side in sides.items()}
    overlap = shared(keys["train"], keys["val"])
    return Made(sides, {**corpus.dropped(), **dropped}, overlap, held, tuple(languages), corpus.classes())


def shared(train: Iterable[Hashable], val: Iterable[Hashable]) -> int:
    """How many texts of the validation split, or keys of them, the training split has as well, to the letter."""
    known = set(train)
    return sum(key in known for key in val)


@final
class _Gathered:
    """One side of one split while it is built."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._size = vocabulary.size
        self._kind = np.uint16 if self._size <= 1 << 16 else np.int32
        self._ids: list[Array] = []
        self._sentences: list[int] = []  # how long each is
        self._documents: list[int] = []  # how many sentences each has
        self._languages: list[int] = []
        self._labels: list[tuple[float, ...]] = []

    def add(
        self, name: str, sentences: Sequence[Sequence[int]], language: int = 0, labels: tuple[float, ...] = ()
    ) -> None:
        ids = np.fromiter(chain.from_iterable(sentences), np.int64)
        wrong = np.flatnonzero((ids < 0) | (ids >= self._size))
        if wrong.size:
            raise _outside(name, int(wrong[0]), int(ids[wrong[0]]), self._size)
        self._ids.append(ids.astype(self._kind))
        self._sentences.extend(map(len, sentences))
        self._documents.append(len(sentences))
        self._languages.append(language)
        self._labels.append(labels)

    def arrays(self) -> Arrays:
        ids = np.concatenate(self._ids) if self._ids else np.empty(0, self._kind)
        languages = np.array(self._languages, np.int64)
        labels = np.fromiter(chain.from_iterable(self._labels), np.float64)
        labelled = _offsets([len(each) for each in self._labels]) if labels.size else np.empty(0, np.int64)
        return Arrays(ids, _offsets(self._sentences), _offsets(self._documents), languages, labels, labelled)


def _offsets(lengths: Sequence[int]) -> Array:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def _gather(
    corpus: Corpus,
    tokenizer: Tokenizer,
    split: Split,
    languages: dict[str, int],
    dropped: Counter[str],
    progress: Progress,
) -> tuple[dict[str, Arrays], list[bytes]]:
    """The sides of a split, and a key for the text of each of its documents; `languages` are numbered as they come."""
    vocabulary = tokenizer.vocabulary()
    source, target = _Gathered(vocabulary), _Gathered(vocabulary)
    keys: list[bytes] = []
    paired = False
    for batch in _batches(_counted(corpus.documents(split), split, progress)):
        rows = _rows(tokenizer, [document.sentences for document in batch])
        others = _rows(tokenizer, [document.target for document in batch])
        for document, row, other in zip(batch, rows, others, strict=True):
            paired = bool(other) if not keys else paired  # as the first is, so are all
            if not row:
                dropped["documents without a sentence"] += 1
            elif bool(other) != paired:
                dropped["documents with one side among pairs, or with two among others"] += 1
            elif document.labels and (len(row), len(other)) != (len(document.sentences), len(document.target)):
                dropped["documents whose labels count a sentence that has no token"] += 1
            else:
                language = languages.setdefault(document.language, len(languages))
                source.add(document.name, row, language, document.labels)
                if paired:
                    language = languages.setdefault(document.target_language, len(languages))
                    target.add(f"{document.name}, target", other, language)
                keys.append(_key(document))
    sides = {split: source.arrays()}
    return sides | ({f"{split} targets": target.arrays()} if paired else {}), keys


def _key(document: Document) -> bytes:
    text = "\0".join((document.text, *document.target))
    return bytes.fromhex(digest(text.encode("utf-8", "surrogatepass")))


def _rows(tokenizer: Tokenizer, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    """The ids of each sentence of each text, without the blank ones and those that have none."""
    kept = [[sentence for sentence in text if sentence.strip()] for text in texts]
    ids = iter(tokenizer.encode_batch([" " * (place > 0) + it for text in kept for place, it in enumerate(text)]))
    return [[row for row in islice(ids, len(text)) if row] for text in kept]


def _texts(corpus: Corpus, progress: Progress) -> Iterator[str]:
    for document in _counted(corpus.documents("train"), "tokenizer", progress):
        yield document.text
        if document.target:
            yield " ".join(document.target)


def _counted(documents: Iterable[Document], what: str, progress: Progress) -> Iterator[Document]:
    done = 0
    for document in documents:
        yield document
        done += 1
        if done % _BATCH == 0:
            progress(what, done)
    progress(what, done)


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    while batch := list(islice(documents, _BATCH)):
        yield batch


def _outside(name: str, position: int, token: int, size: int) -> DataError:
    what = f"document {name!r} has the id {token} at position {position}, of a vocabulary of {size:,}"
    return DataError(Problem(code="id-outside", path="tokenizer", what=what, valid=f"ids from 0 to {size - 1:,}"))


def _nothing(split: Split, dropped: Mapping[str, int]) -> DataError:
    left_out = "; ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    what = f"no document is left in the split `{split}`" + (f" (left out: {left_out})" if left_out else "")
    return DataError(
        Problem(code="no-documents", path="corpus", what=what, valid="at least one document in each split")
    )
