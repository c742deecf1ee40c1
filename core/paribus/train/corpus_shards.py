"""A corpus encoded shard by shard: each a file of its own, so that little is in memory and nothing is done twice.

Where a shard begins follows from the documents alone. So neither the number of processes nor how often the building was
cut shows in what comes out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from paribus.errors import DataError, Problem, StoreError
from paribus.slots.corpus import Corpus, Document, Split
from paribus.slots.tokenizer import Tokenizer
from paribus.storage.atomic import Json, damaged_error, digest, digest_json, read_json, write_bytes, write_json
from paribus.train.encoding import (
    KEY,
    SPLITS,
    Array,
    FlatDocuments,
    Progress,
    dropped_summary,
    encode,
    is_paired,
    with_progress,
)
from paribus.train.worker_pool import WorkerPool

LETTERS: Final = 1 << 22  # of text in a shard, with which it is full
DOCUMENTS: Final = 1 << 16  # the same

_FIELDS: Final = len(FlatDocuments._fields)
_BEGUN: Final = "begun.json"
_TOKENIZER: Final = "tokenizer"


@final
@dataclass(frozen=True)
class Shard:
    """One that lies finished on the disk."""

    path: Path
    meta: Mapping[str, Any]

    @property
    def count(self) -> int:
        return int(self.meta["kept"])

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(self.meta["languages"])

    @property
    def sides(self) -> int:
        return len(self.meta["arrays"]) // _FIELDS

    def side(self, number: int) -> FlatDocuments:
        return FlatDocuments(*self._arrays(number * _FIELDS, (number + 1) * _FIELDS))

    def keys(self) -> Array:
        return self._arrays(-1, None)[0].reshape(-1, KEY)

    def is_whole(self) -> bool:
        return digest(self._data().data) == str(self.meta["data"])

    def _arrays(self, first: int, last: int | None) -> list[Array]:
        data = self._data()
        return [data[start : start + size].view(kind) for kind, start, size in self.meta["arrays"][first:last]]

    def _data(self) -> Array:
        try:
            return np.asarray(np.memmap(self.path, np.uint8, "r"))
        except (OSError, ValueError) as error:  # numpy refuses an empty file by a ValueError
            raise damaged_error(self.path, str(error)) from error


@final
class Shards:
    """All shards of a corpus, in order. `folder` may hold some that a building before this one finished."""

    def __init__(self, folder: Path, corpus: Corpus, tokenizer: Tokenizer, progress: Progress) -> None:
        self.folder = folder
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.progress = progress

    def train(self, size: int | None, learned: bytes | None = None) -> bytes:
        """Trains the tokenizer on the training split, unless it has `learned` before; gives its state."""
        state = learned or self._learned()
        if state is None:
            self.tokenizer.train(_Texts(self.corpus, self.progress), size)
            state = self.tokenizer.state()
            write_bytes(self.folder / _TOKENIZER, state)
            write_json(self.folder / _BEGUN, {"tokenizer": digest(state)})
        else:
            self.tokenizer.load(state)
        self._state = digest(state)
        return state

    def build(self, processes: int) -> dict[Split, list[Shard]]:
        """Encodes what is not there yet, `processes` shards at a time."""
        result: dict[Split, list[Shard]] = {}
        for split in SPLITS:
            paired = is_paired(self.corpus.documents(split), self.tokenizer)
            write = ShardWriter(self.folder, self.tokenizer, split, paired, self._state)
            shards = shard_documents(with_progress(self.corpus.documents(split), split, self.progress))
            with WorkerPool(write, processes) as pool:
                result[split] = list(pool.map(enumerate(shards), write.found))
            if not any(shard.count for shard in result[split]):
                raise _nothing(split, {**self.corpus.skipped_inputs(), **dropped_counts(result)})
        return result

    def _learned(self) -> bytes | None:
        try:
            begun = read_json(self.folder / _BEGUN)
            state = (self.folder / _TOKENIZER).read_bytes()
        except (StoreError, OSError):
            return None
        return state if digest(state) == begun["tokenizer"] else None


@final
class _Texts:
    """All that the tokenizer is trained on, as often as it asks: nobody has to hold it to read it twice."""

    def __init__(self, corpus: Corpus, progress: Progress) -> None:
        self._corpus, self._progress = corpus, progress

    def __iter__(self) -> Iterator[str]:
        for document in with_progress(self._corpus.documents("train"), "tokenizer", self._progress):
            yield document.text
            if document.target:
                yield " ".join(document.target)


@final
class ShardWriter:
    """Encodes a shard and writes it: its arrays, and then the document that says they are whole."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, split: Split, paired: bool, state: str) -> None:
        self.folder, self.tokenizer, self.split, self.paired, self.state = folder, tokenizer, split, paired, state

    def __call__(self, number: int, documents: list[Document]) -> Shard:
        part = encode(documents, self.tokenizer, paired=self.paired)
        arrays = [*chain.from_iterable(part.sides), part.keys]
        chunks: list[bytes | memoryview] = []
        placed: list[Json] = []
        end = 0
        for array in arrays:
            chunk = array.data.cast("B") if array.size else b""
            padding = bytes(-len(chunk) % 8)
            placed.append([array.dtype.str, end, len(chunk)])
            chunks += [chunk, padding]
            end += len(chunk) + len(padding)
        chunks.append(bytes(8))  # a file of nothing cannot be mapped
        meta: dict[str, Json] = {
            "of": self._key(documents),
            "data": digest(*chunks),
            "arrays": placed,
            "kept": len(part.keys),
            "languages": list(part.languages),
            "dropped": dict(part.dropped),
            "bytes": part.bytes,
        }
        write_bytes(self._path(number), *chunks)
        write_json(self._path(number).with_suffix(".json"), meta)
        return Shard(self._path(number), meta)

    def found(self, number: int, documents: list[Document]) -> Shard | None:
        """The same shard, where a building before this one finished it."""
        try:
            shard = Shard(self._path(number), read_json(self._path(number).with_suffix(".json")))
            if shard.meta["of"] != self._key(documents):
                return None
            return shard if shard.is_whole() else None
        except StoreError:
            return None

    def _path(self, number: int) -> Path:
        return self.folder / f"{self.split}-{number:06}.shard"

    def _key(self, documents: list[Document]) -> str:
        """What else decides a shard: the entry's own name speaks for the rest of the corpus."""
        return digest_json([self.state, self.paired, len(documents), documents[0].name, documents[-1].name])


def shard_documents(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Successive documents, until there is enough of them for a shard."""
    batch: list[Document] = []
    letters = 0
    for document in documents:
        batch.append(document)
        letters += sum(map(len, document.sentences)) + sum(map(len, document.target))
        if letters >= LETTERS or len(batch) >= DOCUMENTS:
            yield batch
            batch, letters = [], 0
    if batch:
        yield batch


def dropped_counts(shards: Mapping[Split, Iterable[Shard]]) -> Counter[str]:
    result: Counter[str] = Counter()
    for shard in chain.from_iterable(shards.values()):
        result.update(shard.meta["dropped"])
    return result


def _nothing(split: Split, counts: Mapping[str, int]) -> DataError:
    reason = dropped_summary(counts)
    message = f"no document is left in the split `{split}`" + (f" (left out: {reason})" if reason else "")
    return DataError(
        Problem(code="no-documents", path="corpus", message=message, valid="at least one document in each split")
    )
