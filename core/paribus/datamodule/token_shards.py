"""Token ids of a tokenized corpus: shards that are read where they are, checked once, and divided into documents."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np

from paribus.errors import DataError, Problem
from paribus.slots.corpus import Ints, TokenShard, TokenShards
from paribus.slots.tokenizer import Vocabulary

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK: Final = 1 << 22  # ids that are checked at a time


@final
class JoinedIds:
    """Ids of several arrays, one after the other, without a copy of all."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays
        self._starts = np.cumsum([0, *map(len, arrays)])
        self.dtype: np.dtype[Any] = np.result_type(*arrays)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: slice | Array, /) -> Array:
        if not isinstance(index, slice):
            return self._gather(np.asarray(index))
        start, stop, step = index.indices(len(self))
        if step != 1:
            return self._gather(np.arange(start, stop, step))
        first, last = np.searchsorted(self._starts, [start, max(start, stop - 1)], side="right") - 1
        parts = [
            self._arrays[number][max(start - self._starts[number], 0) : max(stop - self._starts[number], 0)]
            for number in range(first, min(last + 1, len(self._arrays)))
        ]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.dtype), *parts])

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> Array:
        return np.concatenate(self._arrays).astype(dtype or self.dtype)

    def take(self, indices: Array, /, *, mode: Literal["raise", "clip"] = "raise") -> Array:
        """Return the ids at these places; `clip` replaces places outside by the first or the last."""
        return self._gather(indices.clip(0, len(self) - 1) if mode == "clip" else indices)

    def _gather(self, places: Array) -> Array:
        flat = places.reshape(-1)
        if flat.size and flat.min() < 0:
            flat = np.where(flat < 0, flat + len(self), flat)
        if flat.size and not 0 <= flat.min() <= flat.max() < len(self):
            raise IndexError(f"a place outside of the {len(self):,} ids")
        number = np.searchsorted(self._starts, flat, side="right") - 1
        number = number.astype(np.min_scalar_type(len(self._arrays)))  # numpy sorts small types faster
        order = np.argsort(number, kind="stable")
        bounds = np.flatnonzero(np.diff(number[order], prepend=-1, append=-1).astype(bool))
        ids = np.empty(flat.shape, self.dtype)
        for start, stop in pairwise(bounds):
            rows, array = order[start:stop], number[order[start]]
            ids[rows] = self._arrays[array].take(flat[rows] - self._starts[array])
        return ids.reshape(places.shape)


def join_shards(split: TokenShards) -> Ints:
    """Return the ids of all shards: those of a single array as they are."""
    arrays = [np.asarray(shard.ids) for shard in split.shards if len(shard.ids)]
    return arrays[0] if len(arrays) == 1 else JoinedIds(arrays)  # type: ignore[return-value]  # read like an array


class Scan(NamedTuple):
    """Result of reading all ids of a split."""

    bounds: Array  # first id of each document, and the end
    counts: Array  # of each id of the vocabulary


def scan(split: TokenShards, vocabulary: Vocabulary) -> Scan:
    """Read all ids of a split, block by block, to divide them into documents, and check that they are valid."""
    divider = _divider(split, vocabulary)
    parts, total = [np.zeros(1, np.int64)], 0
    counts = np.zeros(vocabulary.size, np.int64)
    for shard in split.shards:
        for start, block in _blocks(shard):
            _check_range(shard, start, block, vocabulary.size)
            counts += np.bincount(block, minlength=vocabulary.size)
            if divider is not None:
                parts.append(np.flatnonzero(block == divider) + (total + start + (split.bounds == "end")))
        if shard.rows is not None:
            parts.append(total + shard.rows.astype(np.int64))
        total += len(shard.ids)
        if shard.rows is None and split.bounds == "whole":
            parts.append(np.array([total]))
    return Scan(np.unique(np.concatenate([*parts, [total]])), counts)


def _divider(split: TokenShards, vocabulary: Vocabulary) -> int | None:
    """Return the id of the token between documents."""
    if split.bounds == "whole":
        return None
    end = vocabulary.end_token
    divider = vocabulary.specials.get("bos", end) if split.bounds == "start" else end
    if divider is None:
        message = "the tokenizer has no token at which documents of the corpus could be divided"
        valid = "the id of that token as `tokenizer.eos`, or documents of whole files: corpus.documents=whole"
        raise DataError(Problem(code="missing-special-token", path="tokenizer", message=message, valid=valid))
    return divider


def _blocks(shard: TokenShard) -> Iterator[tuple[int, Array]]:
    """Yield the ids of a shard in blocks, with the place of the first; pages of a block are released after its use."""
    for start in range(0, len(shard.ids), BLOCK):
        yield start, np.asarray(shard.ids[start : start + BLOCK])
        _release(shard.ids)


def _release(ids: Array) -> None:
    """Unmap the pages of a mapped file that were read, so that they do not count as memory of this process."""
    base: object = ids
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def _check_range(shard: TokenShard, start: int, block: Array, size: int) -> None:
    if 0 <= int(block.min()) <= int(block.max()) < size:
        return
    index = int(np.flatnonzero((block < 0) | (block >= size))[0])
    message = f"the id {int(block[index]):,} is not in the vocabulary of {size:,} ids"
    location = f"{shard.name}, token {start + index:,}"
    valid = f"ids from 0 to {size - 1:,}, of the tokenizer that wrote the file"
    raise DataError(Problem(code="id-out-of-range", path="corpus", location=location, message=message, valid=valid))
