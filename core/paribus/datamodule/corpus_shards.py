"""Shards of an encoded corpus: one file each, so that memory use is small and an interrupted build can resume.

The bounds of a shard depend on the documents alone. So the result depends neither on the number of processes nor on
interruptions of the build.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from paribus.datamodule.encoding import (
    KEY,
    SPLITS,
    Array,
    FlatDocuments,
    Progress,
    dropped_summary,
    encode,
    is_paired,
    pieces_of,
    with_progress,
)
from paribus.datamodule.worker_pool import WorkerPool
from paribus.errors import DataError, Problem, StoreError
from paribus.slots.corpus import Corpus, Document, Split
from paribus.slots.tokenizer import Tokenizer
from paribus.storage.atomic import Json, damaged_error, digest, digest_json, read_json, write_bytes, write_json

MAX_CHARACTERS: Final = 1 << 22  # maximum number of characters in a shard
MAX_DOCUMENTS: Final = 1 << 16  # maximum number of documents in a shard

_FIELDS: Final = len(FlatDocuments._fields)
_STARTED: Final = "started.json"
_TOKENIZER: Final = "tokenizer"


@final
@dataclass(frozen=True)
class Shard:
    """Finished shard on the disk."""

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

    def _arrays(self, start: int, stop: int | None) -> list[Array]:
        data = self._data()
        return [data[begin : begin + size].view(kind) for kind, begin, size in self.meta["arrays"][start:stop]]

    def _data(self) -> Array:
        try:
            return np.asarray(np.memmap(self.path, np.uint8, "r"))
        except (OSError, ValueError) as error:  # numpy raises a ValueError for an empty file
            raise damaged_error(self.path, str(error)) from error


@final
class Shards:
    """Shards of a corpus, in order. `folder` may contain shards that an earlier, interrupted build finished."""

    def __init__(self, folder: Path, corpus: Corpus, tokenizer: Tokenizer, progress: Progress) -> None:
        self.folder = folder
        self.corpus = corpus
        self.tokenizer = tokenizer
        self.progress = progress

    def train(self, size: int | None, learned: bytes | None = None) -> bytes:
        """Train the tokenizer on the training split, or load the trained state `learned`; return its state."""
        state = learned or self._saved_state()
        if state is None:
            self.tokenizer.train(_Texts(self.corpus, self.progress), size)
            state = self.tokenizer.state()
            write_bytes(self.folder / _TOKENIZER, state)
            write_json(self.folder / _STARTED, {"tokenizer": digest(state)})
        else:
            self.tokenizer.load(state)
        self._state = digest(state)
        return state

    def build(self, processes: int) -> dict[Split, list[Shard]]:
        """Encode the shards that do not exist yet, `processes` at a time."""
        result: dict[Split, list[Shard]] = {}
        for split in SPLITS:
            paired = is_paired(self.corpus.documents(split), self.tokenizer)
            write = ShardWriter(self.folder, self.tokenizer, split, paired, self._state)
            shards = shard_documents(with_progress(self.corpus.documents(split), split, self.progress))
            with WorkerPool(write, processes) as pool:
                result[split] = list(pool.map(enumerate(shards), write.load_finished))
            if not any(shard.count for shard in result[split]):
                raise no_documents_error(split, {**self.corpus.skipped_inputs(), **dropped_counts(result)})
        return result

    def _saved_state(self) -> bytes | None:
        try:
            started = read_json(self.folder / _STARTED)
            state = (self.folder / _TOKENIZER).read_bytes()
        except (StoreError, OSError):
            return None
        return state if digest(state) == started["tokenizer"] else None


@final
class _Texts:
    """Texts that the tokenizer is trained on. Each iteration reads them again, so they need not fit into memory."""

    def __init__(self, corpus: Corpus, progress: Progress) -> None:
        self._corpus, self._progress = corpus, progress

    def __iter__(self) -> Iterator[str]:
        for document in with_progress(self._corpus.documents("train"), "tokenizer", self._progress):
            yield from pieces_of(document.text, None)
            if document.target:
                yield from pieces_of(" ".join(document.target), None)


@final
class ShardWriter:
    """Writer of encoded shards: first the arrays, then the JSON document that marks them as complete."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, split: Split, paired: bool, state: str) -> None:
        self.folder, self.tokenizer, self.split, self.paired, self.state = folder, tokenizer, split, paired, state
        self.count_lost = split == "val" and tokenizer.traits.get("modality", "text") == "text"

    def __call__(self, number: int, documents: list[Document]) -> Shard:
        part = encode(documents, self.tokenizer, paired=self.paired, count_lost=self.count_lost)
        arrays = [*chain.from_iterable(part.sides), part.keys]
        chunks: list[bytes | memoryview] = []
        blocks: list[Json] = []
        end = 0
        for array in arrays:
            chunk = array.data.cast("B") if array.size else b""
            padding = bytes(-len(chunk) % 8)
            blocks.append([array.dtype.str, end, len(chunk)])
            chunks += [chunk, padding]
            end += len(chunk) + len(padding)
        chunks.append(bytes(8))  # an empty file cannot be mapped
        meta: dict[str, Json] = {
            "of": self._key(documents),
            "data": digest(*chunks),
            "arrays": blocks,
            "kept": len(part.keys),
            "languages": list(part.languages),
            "dropped": dict(part.dropped),
            "bytes": part.bytes,
            "lost": part.lost,
        }
        write_bytes(self._path(number), *chunks)
        write_json(self._path(number).with_suffix(".json"), meta)
        return Shard(self._path(number), meta)

    def load_finished(self, number: int, documents: list[Document]) -> Shard | None:
        """Return the shard if an earlier build finished it; otherwise None."""
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
        """Return a digest of the inputs of a shard that the name of the cache entry does not cover."""
        return digest_json([self.state, self.paired, len(documents), documents[0].name, documents[-1].name])


def shard_documents(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Yield the documents of each shard, in order."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += sum(map(len, document.sentences)) + sum(map(len, document.target))
        if characters >= MAX_CHARACTERS or len(batch) >= MAX_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def dropped_counts(shards: Mapping[Split, Iterable[Shard]]) -> Counter[str]:
    result: Counter[str] = Counter()
    for shard in chain.from_iterable(shards.values()):
        result.update(shard.meta["dropped"])
    return result


def no_documents_error(split: Split, counts: Mapping[str, int]) -> DataError:
    reason = dropped_summary(counts)
    message = f"no document is left in the split `{split}`" + (f" (left out: {reason})" if reason else "")
    return DataError(
        Problem(code="no-documents", path="corpus", message=message, valid="at least one document in each split")
    )
