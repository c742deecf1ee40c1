"""Atomic writes and checked reads of files, JSON documents with their hash, and the cache folder.

A file is written under a temporary name, flushed, renamed, and its folder flushed: a process that dies leaves the old
content or the new one, and at worst a temporary file that `remove_temporary_files` deletes. A JSON document contains
its hash, and is read only if its bytes are those that were written.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeAlias, final

from paribus.errors import Problem, StoreError

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"

SCHEMA: Final = 1
TEMPORARY_PREFIX: Final = ".paribus-"  # of the name of a file that is being written
DAMAGED_SUFFIX: Final = ".bad"


@final
class DamagedError(StoreError):
    """The content of a file is not what was written. Other errors of reading may have causes outside of the file."""


# --- the system calls ---


def _create(path: Path) -> int:
    # Not 0600 as in tempfile: the umask decides who can read a shared store.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _extend(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


def _fsync_dir(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot flush a folder
            raise
    finally:
        os.close(descriptor)


@final
@dataclass(frozen=True, kw_only=True)
class Files:
    """System calls of a write; a test can make the k-th of them fail."""

    create: Callable[[Path], int] = _create
    extend: Callable[[Path], int] = _extend
    write: Callable[[int, memoryview], int] = os.write
    fsync: Callable[[int], None] = os.fsync
    close: Callable[[int], None] = os.close
    rename: Callable[[Path, Path], None] = os.replace
    fsync_dir: Callable[[Path], None] = _fsync_dir
    mkdir: Callable[[Path], None] = os.mkdir
    unlink: Callable[[Path], None] = os.unlink

    def with_callback(self, on_call: Callable[[str], None]) -> Files:
        """Return the same calls, each after `before(name)`, which may raise or kill the process."""

        def announce(name: str) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                on_call(name)
                return getattr(self, name)(*arguments)

            return call

        return Files(**{field.name: announce(field.name) for field in fields(self)})


FILES: Final = Files()


# --- writing ---


def write_bytes(path: Path, *chunks: bytes | memoryview, files: Files = FILES) -> None:
    """Replace the file at `path` by the concatenated chunks, completely or not at all."""
    views = [memoryview(chunk).cast("B") for chunk in chunks]
    write_stream(path, views, sum(map(len, views)), files=files)


def write_stream(path: Path, chunks: Iterable[bytes | memoryview], size: int, *, files: Files = FILES) -> None:
    """Do the same for chunks of `size` bytes in total that are produced one by one."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}.tmp")
    with _explain_errors(path, f"{size:,} bytes could not be written"):
        try:
            _write_chunks(temporary, (memoryview(chunk).cast("B") for chunk in chunks), files)
            files.rename(temporary, path)
            files.fsync_dir(path.parent)
        except BaseException:  # KeyboardInterrupt included
            with suppress(OSError):  # report the first error
                files.unlink(temporary)
            raise


def _write_chunks(path: Path, views: Iterable[memoryview], files: Files) -> None:
    descriptor = files.create(path)
    try:
        for view in views:
            remaining = view
            while remaining:  # one call writes at most 2 GiB, and less on a nearly full disk
                remaining = remaining[files.write(descriptor, remaining) :]
        files.fsync(descriptor)
    finally:
        files.close(descriptor)


def write_json(path: Path, document: Mapping[str, Json], *, schema: int = SCHEMA, files: Files = FILES) -> None:
    """Replace the file at `path` by `{"body": document, "schema": …, "sha256": …}`, with the hash of the other two."""
    write_bytes(path, _add_hash(canonical_json({"body": document, "schema": schema})), files=files)


def make_folder(folder: Path, *, files: Files = FILES) -> None:
    """Create a folder and its missing parents, and flush each one's parent."""
    with _explain_errors(folder, "this folder could not be made"):
        missing = [place for place in (folder, *folder.parents) if not place.is_dir()]
        for place in reversed(missing):
            with suppress(FileExistsError):  # another process was faster; if it is a file, the next line fails
                files.mkdir(place)
            files.fsync_dir(place)
            files.fsync_dir(place.parent)


def quarantine(path: Path, *, files: Files = FILES) -> Path:
    """Rename a damaged file and return its new path; nothing is deleted or overwritten."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}{DAMAGED_SUFFIX}")
    with _explain_errors(path, f"this file could not be set aside as {aside.name}"):
        files.rename(path, aside)
        files.fsync_dir(path.parent)
    return aside


def remove_temporary_files(folder: Path, *, files: Files = FILES) -> None:
    """Delete temporary files of processes that died; only the owner of the folder's lock may call this."""
    with suppress(OSError):  # harmless; the next call tries again
        for stray in folder.glob(f"{TEMPORARY_PREFIX}*.tmp"):
            files.unlink(stray)


def append_line(path: Path, text: str, *, files: Files = FILES) -> bool:
    """Append a line to a log, and return whether that worked; errors are ignored.

    The file is not flushed to the disk. An incomplete line of an earlier process stays a line of its own.
    """
    line = (text.replace("\n", "\\n") + "\n").encode(errors="backslashreplace")
    try:
        descriptor = files.extend(path)
        try:
            end = os.lseek(descriptor, 0, os.SEEK_END)
            if end and os.pread(descriptor, 1, end - 1) != b"\n":
                line = b"\n" + line
            return files.write(descriptor, memoryview(line)) == len(line)
        finally:
            files.close(descriptor)
    except OSError:
        return False


# --- reading ---


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file, or raise a `StoreError` that names it."""
    try:
        return path.read_bytes()
    except OSError as error:
        # Only these two mean damage; "permission denied" or "too many open files" do not.
        kind = DamagedError if error.errno in (errno.EIO, errno.EISDIR) else StoreError
        message = f"this file could not be read: {error.strerror or error}"
        raise kind(Problem(code="cannot-read", location=str(path), message=message)) from error


def read_json(path: Path, *, schema: int = SCHEMA) -> dict[str, Any]:
    """Return the body of a document of `write_json`; raise an error unless its bytes are those that were written."""
    data = read_bytes(path)
    try:
        body, written_schema = _decode(data)
    except (ValueError, RecursionError) as error:
        raise damaged_error(path, str(error)) from error
    if written_schema != schema:  # undamaged, so not to be set aside
        message = f"this file is written in schema {written_schema}, which this version of paribus does not read"
        raise StoreError(Problem(code="unknown-schema", location=str(path), message=message, valid=str(schema)))
    return body


def _add_hash(inner: bytes) -> bytes:
    """Add the hash of an encoded document as its last key: `sha256` sorts after `body` and `schema`."""
    return inner[:-1] + b',"sha256":"' + digest(inner).encode() + b'"}\n'


def _decode(data: bytes) -> tuple[dict[str, Any], int]:
    envelope = parse_json(data)
    if not isinstance(envelope, dict) or envelope.keys() != {"body", "schema", "sha256"}:
        raise ValueError("it is not an object with exactly the keys body, schema and sha256")
    body, schema = envelope["body"], envelope["schema"]
    inner = _encode({"body": body, "schema": schema})
    if digest(inner) != envelope["sha256"]:
        raise ValueError("it does not have the hash that it was sealed with")
    if not isinstance(body, dict) or not isinstance(schema, int):
        raise ValueError("its body is not an object, or its schema not an integer")
    if data != _add_hash(inner):  # the hash is of the parsed document, and \u00E9 parses like \u00e9
        raise ValueError("its encoding is not that of `write_json`")
    return body, schema


def damaged_error(path: Path, reason: str) -> DamagedError:
    """Return the error for a file whose content is not what was written."""
    return DamagedError(
        Problem(code="damaged", location=str(path), message=f"this file was cut, edited or damaged: {reason}")
    )


# --- JSON and hashes ---

_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(document: Json) -> bytes:
    """Encode a document canonically: sorted keys, no spaces, ASCII, floats that are not finite as strings."""
    return _encode(_to_json(document, "document"))


def _encode(document: Json) -> bytes:
    """Encode plain JSON canonically."""
    return _ENCODER.encode(document).encode()


def parse_json(data: bytes) -> Json:
    """Parse standard JSON (UTF-8, no NaN, no duplicate keys), or raise a `ValueError`."""
    try:
        document: Json = json.loads(data.decode(), object_pairs_hook=_unique_keys, parse_constant=_reject_constant)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return document


def parse_number(value: Json) -> float:
    """Return a number of a document, in which floats that are not finite are "nan", "inf" or "-inf"."""
    if value in ("nan", "inf", "-inf") or (isinstance(value, int | float) and not isinstance(value, bool)):
        return float(value)
    raise ValueError(f"not a number: {value!r}")


def digest(data: bytes | memoryview, *more_chunks: bytes | memoryview) -> str:
    """Return the SHA-256 of the concatenated chunks in hexadecimal."""
    hashed = hashlib.sha256(data)
    for chunk in more_chunks:
        hashed.update(chunk)
    return hashed.hexdigest()


def digest_json(document: Json) -> str:
    """Return the SHA-256 of a document's canonical encoding."""
    return digest(canonical_json(document))


def _unique_keys(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {max(names, key=names.count)!r} appears twice")
    return document


def _reject_constant(constant: str) -> Json:
    raise ValueError(f"{constant} is not JSON")


def _to_json(value: Json, place: str) -> Json:
    """Return a value as plain JSON; a value that JSON does not have is a bug, and a `TypeError`."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):  # json would turn 1 into "1", and True into "true"
                raise TypeError(f"{place}: a key must be a string, but is {key!r}")
        return {key: _to_json(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item, f"{place}[{index}]") for index, item in enumerate(value)]
    raise TypeError(f"{place}: JSON has no {type(value).__name__}")


# --- errors of the disk ---

_REMEDIES: Final[Mapping[int | None, str]] = {
    errno.ENOSPC: "free that much space",
    errno.EDQUOT: "free that much of your quota",
    errno.EACCES: "make the folder writable",
    errno.EPERM: "make the folder writable",
    errno.EROFS: "make the folder writable",
    errno.ENOENT: "restore the folder",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files (ulimit -n)",
    errno.EIO: "check the disk",
}


@contextmanager
def _explain_errors(path: Path, message: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno, "repair that")
        raise StoreError(
            Problem(
                code="cannot-write",
                location=str(path),
                message=f"{message}: {error.strerror or error}; nothing is half-written: {remedy}, and run it again",
            )
        ) from error


def cache_folder() -> Path:
    """Return the cache folder: `$PARIBUS_CACHE_DIR`, or the usual one of the platform."""
    folder = os.environ.get("PARIBUS_CACHE_DIR")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paribus"
