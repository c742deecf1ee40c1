"""Arrays of token ids in files of other programs, mapped as they are."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from paribus import DataError, Problem, TokenShard, join_names, missing_package

if TYPE_CHECKING:
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

KINDS: Final = (".bin", ".npy")
STATE: Final = "state.json"  # lists the files in a folder of save_to_disk
HEADER: Final = 256  # numbers of 4 bytes before the ids, in files of llm.c
DTYPES: Final = {(20240520, 1): "<u2", (20240801, 7): "<u4"}  # magic number and version in a header -> type of ids


def array_shard(path: Path, dtype: str) -> TokenShard:
    """Return the ids of a file: `.npy`, or `.bin` with the header of llm.c, or without one and of type `dtype`."""
    import numpy as np

    try:
        if path.suffix.lower() == ".npy":
            ids = np.load(path, mmap_mode="r", allow_pickle=False)
            if ids.ndim != 1 or ids.dtype.kind not in "iu":
                message = f"the array has the shape {ids.shape} and the type {ids.dtype}"
                raise _error("not-ids", path, message, "whole numbers in one dimension")
            return TokenShard(str(path), _signed(ids))
        return TokenShard(str(path), _binary_ids(path, np.dtype(dtype).newbyteorder("<")))
    except OSError as error:
        raise _error("cannot-read", path, f"cannot read the file: {error.strerror}", "a readable file") from error
    except ValueError as error:  # of numpy, for a file that is not `.npy`
        raise _error("not-ids", path, f"numpy cannot read the file: {error}", "an array of ids") from error


def _binary_ids(path: Path, dtype: np.dtype[Any]) -> Array:
    import numpy as np

    size = path.stat().st_size
    header = np.fromfile(path, "<i4", 3)
    known = [magic for magic, _ in DTYPES]
    if len(header) < 3 or header[0] not in known:
        if size % dtype.itemsize:
            valid = f"a multiple of {dtype.itemsize}; or another corpus.dtype"
            raise _error("not-ids", path, f"the file has {size:,} bytes, and ids of type {dtype.name}", valid)
        return np.memmap(path, dtype, "r") if size else np.empty(0, dtype)
    magic, version, count = header.tolist()
    kind = DTYPES.get((magic, version))
    if kind is None:
        valid = join_names(f"{number} with version {expected}" for number, expected in DTYPES)
        raise _error("not-ids", path, f"the header has the magic number {magic} with version {version}", valid)
    expected = 4 * HEADER + count * np.dtype(kind).itemsize
    if size != expected:
        message = f"the header counts {count:,} ids, which are {expected:,} bytes, but the file has {size:,}"
        raise _error("not-ids", path, message, "a whole file")
    return np.memmap(path, kind, "r", 4 * HEADER, (count,)) if count else np.empty(0, kind)


def _signed(ids: Array) -> Array:
    """Return ids of 8 bytes with a sign, since numpy joins those without one to floats."""
    import numpy as np

    return ids.view(np.int64) if ids.dtype == np.uint64 else ids


def file_digest(path: Path) -> str:
    """Return the sha256 of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _error("cannot-read", path, f"cannot read the file: {error.strerror}", "a readable file") from error


def arrow_files(folder: Path) -> list[Path]:
    """Return the files with the rows of a folder that `save_to_disk` wrote, in order."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        names = [str(file["filename"]) for file in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"cannot read {STATE}: {type(error).__name__}: {error}"
        raise _error("missing-dataset", folder, message, "a folder of `save_to_disk`") from error
    if state.get("_indices_files"):
        message = "the rows are selected by a file of indices"
        raise _error("missing-dataset", folder, message, "a data set after `flatten_indices()`")
    return [folder / name for name in names]


def saved_rows(folder: Path, column: str, *, mapped: bool = True) -> Iterator[TokenShard]:
    """Yield the ids of a folder that `save_to_disk` wrote, batch by batch: mapped, or read into memory."""
    for path in arrow_files(folder):
        first = 0
        for batch in _batches(path, mapped=mapped):
            if column not in batch.schema.names:
                message, valid = f"unknown column {column!r}", f"one of {join_names(batch.schema.names)}"
                raise _error("missing-field", path, message, valid, option="corpus.column")
            yield _batch_shard(f"{path}, from row {first:,}", batch.column(column))
            first += batch.num_rows


def rows_digest(folder: Path, column: str) -> str:
    """Return the sha256 of the ids and the bounds of their rows, without a mapping of the whole files."""
    import numpy as np

    total = hashlib.sha256()
    for shard in saved_rows(folder, column, mapped=False):
        assert shard.rows is not None
        total.update(f"{shard.ids.dtype.str} {len(shard.ids)} {len(shard.rows)}".encode())
        total.update(np.ascontiguousarray(shard.ids).data)
        total.update(shard.rows.data)
    return total.hexdigest()


def _batches(path: Path, *, mapped: bool) -> Iterator[Any]:
    try:
        import pyarrow
    except ImportError as error:
        user = "a folder of `save_to_disk`"
        raise DataError(missing_package("pyarrow", "parquet", user, path="corpus.path", location=str(path))) from error
    try:
        source = pyarrow.memory_map(os.fspath(path)) if mapped else pyarrow.OSFile(os.fspath(path))
        yield from pyarrow.ipc.open_stream(source)
    except (OSError, pyarrow.ArrowException) as error:
        message = f"cannot read the file: {next(iter(str(error).splitlines()), '')}"
        raise _error("cannot-read", path, message, "an Arrow stream, as `save_to_disk` writes it") from error


def _batch_shard(name: str, rows: Any) -> TokenShard:
    """Return the ids of one batch of rows, which are lists of whole numbers."""
    import numpy as np
    from pyarrow import types

    is_list = any(check(rows.type) for check in (types.is_list, types.is_large_list, types.is_fixed_size_list))
    if not is_list or not types.is_integer(rows.type.value_type):
        raise _error("not-ids", name, f"the column has the type {rows.type}", "lists of whole numbers")
    ids = rows.flatten()
    if rows.null_count or ids.null_count:
        raise _error("not-ids", name, f"{rows.null_count + ids.null_count:,} rows or ids are null", "rows of ids")
    lengths = rows.value_lengths().to_numpy(zero_copy_only=False)
    return TokenShard(name, _signed(ids.to_numpy()), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def _error(code: str, location: object, message: str, valid: str, option: str = "corpus.path") -> DataError:
    return DataError(Problem(code=code, path=option, location=str(location), message=message, valid=valid))
