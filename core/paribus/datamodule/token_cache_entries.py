"""Entries of the token store: a memory-mapped file of arrays, and a sealed document with their places.

The document has the hashes of the file and of its blocks. A small file is hashed whenever it is opened. A large one is
hashed once, and a stamp is written: while the stamp is recent and the file's metadata are unchanged, only some blocks
are hashed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from paribus.datamodule.corpus_shards import Shard
from paribus.datamodule.encoding import Array
from paribus.errors import StoreError
from paribus.storage.atomic import Json, damaged_error, digest, read_json, write_json, write_stream

FORMAT: Final = 6
FULL_CHECK_BYTES: Final = 256 << 20  # bytes up to which a file is hashed at each opening
BLOCK: Final = 4 << 20
SAMPLED_BLOCKS: Final = 8  # blocks that are hashed in spite of the stamp
STAMP_SECONDS: Final = 24 * 3600.0  # validity of a stamp
_ALIGNED: Final = 8

META: Final = "meta.json"
STAMP: Final = "checked.json"

Kept = TypeVar("Kept")


class Column(NamedTuple):
    """One array of an entry, made chunk by chunk."""

    kind: str
    size: int
    chunks: Callable[[], Iterator[Array]]


def write_entry(
    folder: Path, state: bytes, sides: Mapping[str, Sequence[Column]], meta_fields: Mapping[str, Json]
) -> None:
    """Write the tokenizer's state and the arrays, with one chunk in memory at a time."""
    whole, blocks, size = _hashed(_bytes(state, sides))
    places: dict[str, Json] = {}
    end = _padded(len(state))
    for name, side_columns in sides.items():
        placed: list[Json] = []
        for column in side_columns:
            placed.append([column.kind, end, column.size])
            end += _padded(column.size * np.dtype(column.kind).itemsize)
        places[name] = placed
    path = folder / f"{whole}.tokens"
    write_stream(path, _bytes(state, sides), size)
    meta: dict[str, Json] = {**meta_fields, "data": whole, "blocks": list(blocks), "state": len(state), "sides": places}
    write_json(folder / META, meta)
    _stamp(folder, path, size)


def read_entry(folder: Path) -> tuple[dict[str, Any], Array]:
    """Return the document of an entry and its mapped file; raise `DamagedError` if the entry has changed."""
    meta = read_json(folder / META)
    path = folder / f"{meta['data']}.tokens"
    try:
        data = np.asarray(np.memmap(path, np.uint8, "r"))
    except (OSError, ValueError) as error:  # numpy raises a ValueError for an empty file
        raise damaged_error(path, str(error)) from error
    count = -(-len(data) // BLOCK)
    if count != len(meta["blocks"]):
        raise damaged_error(path, f"it has {len(data):,} bytes, which is not the number that was written")
    trusted = len(data) > FULL_CHECK_BYTES and _has_valid_stamp(folder, path)
    numbers = _sampled_blocks(count) if trusted else range(count)
    for number in numbers:
        if digest(data[number * BLOCK : (number + 1) * BLOCK].data) != meta["blocks"][number]:
            raise damaged_error(
                path, f"it does not have the hash that it was written with, from byte {number * BLOCK:,} on"
            )
    if not trusted:
        _stamp(folder, path, len(data))
    return meta, data


def side_columns(shards: Sequence[Shard], side: int, languages: Mapping[str, int]) -> list[Column]:
    """Return the arrays of one side of a split; lengths become offsets, and languages numbers of the whole corpus."""
    sizes = [[len(array) for array in shard.side(side)] for shard in shards]
    total = [sum(column) for column in zip(*sizes, strict=True)]
    kind = shards[0].side(side).ids.dtype.str

    def per_shard(take: Callable[[Shard], Array]) -> Callable[[], Iterator[Array]]:
        return lambda: (take(shard) for shard in shards)

    def offsets_of(field: int) -> Callable[[], Iterator[Array]]:
        def chunks() -> Iterator[Array]:
            yield np.zeros(1, np.int64)
            end = 0
            for shard in shards:
                offsets = end + np.cumsum(shard.side(side)[field], dtype=np.int64)
                yield offsets
                end = int(offsets[-1]) if len(offsets) else end

        return chunks

    def numbered(shard: Shard) -> Array:
        numbers = np.array([languages[name] for name in shard.languages], np.int64)
        result: Array = numbers[shard.side(side).languages]
        return result

    int64, float64 = np.dtype(np.int64).str, np.dtype(np.float64).str
    nothing = Column(int64, 0, lambda: iter(()))
    return [
        Column(kind, total[0], per_shard(lambda shard: shard.side(side).ids)),
        Column(int64, total[1] + 1, offsets_of(1)),
        Column(int64, total[2] + 1, offsets_of(2)),
        Column(int64, total[3], per_shard(numbered)) if languages else nothing,
        Column(float64, total[4], per_shard(lambda shard: shard.side(side).labels)),
        Column(int64, total[5] + 1, offsets_of(5)) if total[4] else nothing,
    ]


def bound_columns(bounds: Array) -> list[Column]:
    """Return the arrays of a split whose ids are elsewhere, with documents of one sentence."""
    nothing = array_column(np.empty(0, np.int64))
    return [nothing, array_column(bounds), array_column(np.arange(len(bounds))), nothing, nothing, nothing]


def array_column(array: Array) -> Column:
    return Column(array.dtype.str, len(array), lambda: iter([array]))


# --- bytes ---


def _bytes(state: bytes, sides: Mapping[str, Sequence[Column]]) -> Iterator[bytes | memoryview]:
    yield state
    yield bytes(_padded(len(state)) - len(state))
    for column in (column for side_columns in sides.values() for column in side_columns):
        size = 0
        for chunk in column.chunks():
            if chunk.size:
                yield np.ascontiguousarray(chunk).data.cast("B")
            size += chunk.nbytes
        yield bytes(_padded(size) - size)


def _padded(size: int) -> int:
    return size + -size % _ALIGNED


def _hashed(chunks: Iterable[bytes | memoryview]) -> tuple[str, list[str], int]:
    """Return the hash of all bytes, the hash of each block, and the number of bytes."""
    whole, block, blocks, size = sha256(), sha256(), [], 0
    for chunk in chunks:
        view = memoryview(chunk)
        whole.update(view)
        while view:
            room = BLOCK - size % BLOCK
            block.update(view[:room])
            size += len(view[:room])
            view = view[room:]
            if size % BLOCK == 0:
                blocks.append(block.hexdigest())
                block = sha256()
    if size % BLOCK:
        blocks.append(block.hexdigest())
    return whole.hexdigest(), blocks, size


def _sampled_blocks(count: int) -> list[int]:
    """Return the first and the last block, and random others, so that many openings cover all of them."""
    rng = np.random.default_rng()
    return sorted({0, count - 1, *rng.integers(count, size=SAMPLED_BLOCKS).tolist()})


# --- stamps ---


def _file_state(path: Path) -> list[int]:
    """Return the metadata that change with a file; no program can set its ctime."""
    stat = path.stat()
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _stamp(folder: Path, path: Path, size: int) -> None:
    if size > FULL_CHECK_BYTES:
        with suppress(StoreError):  # a read-only cache: everything is hashed each time
            write_json(folder / STAMP, {"file": list(_file_state(path)), "at": time.time()})


def _has_valid_stamp(folder: Path, path: Path) -> bool:
    try:
        stamp = read_json(folder / STAMP)
    except StoreError:
        return False
    return bool(stamp["file"] == _file_state(path)) and 0 <= time.time() - float(stamp["at"]) < STAMP_SECONDS
