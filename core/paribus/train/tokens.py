"""The token store: a corpus encoded once, memory-mapped by every trial that reads it.

An entry of the cache is a folder named by all that decided its contents. Its data file is named by its own sha256, and
`meta.json`, written last and sealed, points at it: two processes that build at once do not disturb each other, and an
entry that was cut, edited or damaged is seen and built anew.
"""

from __future__ import annotations

import inspect
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from paribus.durable import (
    DamagedError,
    Json,
    damaged,
    digest,
    digest_json,
    make_folder,
    read_json,
    write_bytes,
    write_json,
)
from paribus.errors import DataError, Problem
from paribus.slots.corpus import Corpus, Document, Split
from paribus.slots.tokenizer import Tokenizer, Vocabulary

if TYPE_CHECKING:
    from paribus.slots.objective import Ints, Tokens

FORMAT: Final = 1
SPLITS: Final[tuple[Split, ...]] = ("train", "val")
_ALIGNED: Final = 8
_BATCH: Final = 256  # documents that are encoded, and reported, at a time

Progress = Callable[[str, int], None]  # what is being read (tokenizer, train, val), and how many documents of it

_log = logging.getLogger("paribus")


@final
@dataclass
class Side:
    """The ids of one split, as `Tokens` has them.

    A document's ids are those of its sentences one after the other; the space between two belongs to the later one.
    """

    ids: Ints
    sentences: Ints
    documents: Ints
    targets: Tokens | None = None


@final
@dataclass(frozen=True)
class Encoded:
    """A corpus as ids, and the tokenizer that made them."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    train: Tokens
    val: Tokens
    fingerprint: str  # of the corpus
    tokenizer_fingerprint: str
    dropped: Mapping[str, int]  # how many were left out, by reason
    overlap: int  # documents of the validation split whose text the training split has as well

    def show(self, tokens: Tokens, rows: slice) -> str:
        """The text of some ids, for whoever wonders what a model was fed."""
        return self.tokenizer.decode([int(token) for token in tokens.ids[rows]])


def encoded(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    spec: Json,
    size: int | None,
    cache: Path,
    allow_overlap: bool = False,
    progress: Progress = lambda what, done: None,
) -> Encoded:
    """The corpus as ids, from the cache or built into it.

    `tokenizer` comes untrained and leaves trained, on the training split and to at most `size` ids. `spec` is what the
    user wrote of corpus and tokenizer: with the corpus' fingerprint, the tokenizer's file and `size` it names the
    entry.
    """
    fingerprint = corpus.fingerprint()
    folder = cache / digest_json([FORMAT, fingerprint, spec, _code(tokenizer), size])
    try:
        meta, data = _opened(folder)
    except (FileNotFoundError, DamagedError) as error:
        if isinstance(error, DamagedError):
            _log.warning("%s\nit is built anew", error)
        _build(folder, corpus, tokenizer, size, progress)
        if corpus.fingerprint() != fingerprint:
            raise _changed() from None
        meta, data = _opened(folder)
    if meta["overlap"] and not allow_overlap:
        raise _overlapping(meta["overlap"], meta["held"])
    state = data[: meta["state"]].tobytes()
    tokenizer.load(state)
    train, val = (_side(meta["sides"], data, split) for split in SPLITS)
    return Encoded(
        tokenizer, tokenizer.vocabulary(), train, val, fingerprint, digest(state), meta["dropped"], meta["overlap"]
    )


def shared(train: Iterable[str], val: Iterable[str]) -> int:
    """How many texts of the validation split are, to the letter, in the training split as well."""
    known = set(map(_key, train))
    return sum(_key(text) in known for text in val)


def unigram_nats(train: Tokens, val: Tokens, size: int) -> float:
    """Nats a token of the validation split under the training split's frequencies, one added to each of `size` ids.

    A model that does no better has learned which tokens are frequent, and nothing else.
    """
    counts = np.bincount(train.ids, minlength=size) + 1.0
    asked = np.bincount(val.ids, minlength=size)
    return float(-(asked @ np.log(counts / counts.sum())) / asked.sum())


def _key(text: str) -> bytes:
    return bytes.fromhex(digest(text.encode("utf-8", "surrogatepass")))


def _code(tokenizer: Tokenizer) -> str:
    """What the class is, with its file; a notebook's class has none, and is never taken for one of another time."""
    kind = type(tokenizer)
    try:
        source = digest(Path(inspect.getfile(kind)).read_bytes().replace(b"\r\n", b"\n"))
    except (OSError, TypeError):
        source = secrets.token_hex(16)
    return f"{kind.__module__}.{kind.__qualname__} {source}"


# --- reading an entry ---


def _opened(folder: Path) -> tuple[dict[str, Any], Ints]:
    """An entry's meta data, and its data file mapped and held against its hash."""
    path = folder / "meta.json"
    if not path.exists():
        raise FileNotFoundError(path)
    meta = read_json(path)
    path = folder / f"{meta['data']}.tokens"
    try:
        data = np.asarray(np.memmap(path, np.uint8, "r"))
    except (OSError, ValueError) as error:  # numpy refuses an empty file by a ValueError
        raise damaged(path, str(error)) from error
    if digest(data.data) != meta["data"]:
        raise damaged(path, "it does not have the hash that its name says")
    return meta, data


def _side(sides: Mapping[str, Any], data: Ints, name: str) -> Side:
    ids, sentences, documents = (
        data[start : start + length * np.dtype(kind).itemsize].view(kind) for kind, start, length in sides[name]
    )
    targets = f"{name} targets"
    return Side(ids, sentences, documents, _side(sides, data, targets) if targets in sides else None)


# --- building an entry ---


@final
class _Gathered:
    """One side of one split while it is built."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._size = vocabulary.size
        self._kind = np.uint16 if self._size <= 1 << 16 else np.int32
        self._ids: list[np.ndarray[Any, Any]] = []
        self._sentences: list[int] = []  # how long each is
        self._documents: list[int] = []  # how many sentences each has

    def add(self, name: str, sentences: Sequence[Sequence[int]]) -> None:
        ids = np.fromiter(chain.from_iterable(sentences), np.int64)
        wrong = np.flatnonzero((ids < 0) | (ids >= self._size))
        if wrong.size:
            raise _outside(name, int(wrong[0]), int(ids[wrong[0]]), self._size)
        self._ids.append(ids.astype(self._kind))
        self._sentences.extend(map(len, sentences))
        self._documents.append(len(sentences))

    def arrays(self) -> tuple[np.ndarray[Any, Any], ...]:
        return np.concatenate(self._ids), _offsets(self._sentences), _offsets(self._documents)


def _offsets(lengths: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def _build(folder: Path, corpus: Corpus, tokenizer: Tokenizer, size: int | None, progress: Progress) -> None:
    tokenizer.train(_texts(corpus, progress), size)
    dropped: Counter[str] = Counter()
    sides: dict[str, _Gathered] = {}
    keys: dict[Split, list[bytes]] = {}
    for split in SPLITS:
        made, keys[split] = _gather(corpus, tokenizer, split, dropped, progress)
        if not keys[split]:
            raise _nothing(split, {**corpus.dropped(), **dropped})
        sides |= made
    known = set(keys["train"])
    meta: dict[str, Json] = {
        "dropped": {**corpus.dropped(), **dropped},
        "overlap": sum(key in known for key in keys["val"]),
        "held": len(keys["val"]),
    }
    _write(folder, tokenizer.state(), {name: side.arrays() for name, side in sides.items()}, meta)


def _gather(
    corpus: Corpus, tokenizer: Tokenizer, split: Split, dropped: Counter[str], progress: Progress
) -> tuple[dict[str, _Gathered], list[bytes]]:
    """The sides of a split, and a key for the text of each of its documents."""
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
            else:
                source.add(document.name, row)
                if paired:
                    target.add(document.name, other)
                keys.append(_key("\0".join((*document.sentences, "", *document.target))))
    return {split: source} | ({f"{split} targets": target} if paired else {}), keys


def _rows(tokenizer: Tokenizer, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    """The ids of each sentence of each text, without those that have none."""
    spaced = [" " * (place > 0) + sentence for text in texts for place, sentence in enumerate(text)]
    ids = iter(tokenizer.encode_batch(spaced))
    return [[row for row in islice(ids, len(text)) if row] for text in texts]


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


def _write(
    folder: Path, state: bytes, sides: Mapping[str, Sequence[np.ndarray[Any, Any]]], meta: Mapping[str, Json]
) -> None:
    chunks: list[bytes | memoryview] = []
    places: dict[str, list[Json]] = {}
    end = 0

    def put(chunk: bytes | memoryview) -> int:
        nonlocal end
        start, end = end, end + len(chunk) + -len(chunk) % _ALIGNED
        chunks.extend((chunk, bytes(-len(chunk) % _ALIGNED)))
        return start

    put(state)
    for name, arrays in sides.items():
        places[name] = [[array.dtype.str, put(array.data.cast("B")), len(array)] for array in arrays]
    data = digest(*chunks)
    make_folder(folder)
    write_bytes(folder / f"{data}.tokens", *chunks)
    write_json(folder / "meta.json", {**meta, "data": data, "state": len(state), "sides": places})


# --- what can be wrong ---


def _outside(name: str, position: int, token: int, size: int) -> DataError:
    what = f"document {name!r} has the id {token} at position {position}, of a vocabulary of {size:,}"
    return DataError(Problem(code="id-outside", path="tokenizer", what=what, valid=f"ids from 0 to {size - 1:,}"))


def _nothing(split: Split, dropped: Mapping[str, int]) -> DataError:
    left_out = "; ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    what = f"no document is left in the split `{split}`" + (f" (left out: {left_out})" if left_out else "")
    return DataError(
        Problem(code="no-documents", path="corpus", what=what, valid="at least one document in each split")
    )


def _changed() -> DataError:
    what = "the corpus changed while it was read"
    return DataError(Problem(code="corpus-changed", path="corpus", what=what, valid="files that nobody writes to"))


def _overlapping(number: int, held: int) -> DataError:
    what = f"{number:,} of {held:,} validation documents ({number / held:.1%}) are in the training split as well"
    valid = "none, or allow_overlap to train and be validated on the same text"
    return DataError(Problem(code="overlap", path="corpus", what=what, valid=valid))
