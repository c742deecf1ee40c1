"""The one seam through which everything that must survive is written: whole or not at all, and checked when read.

A file is written beside its place, flushed, renamed, and its folder flushed: whoever dies on the way leaves the old
content or the new, and at worst a stray that `sweep` clears. A JSON document is sealed with its hash, and is
read only if it is to the byte what was written.

Where things are kept that can be made again: the index of plugins, encoded corpora.
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
TEMPORARY_PREFIX: Final = ".paribus-"  # what the name of a file begins with that is being written beside its place
DAMAGED_SUFFIX: Final = ".bad"


@final
class DamagedError(StoreError):
    """A file is not what was written: set it aside. Any other `StoreError` may say nothing against the file itself."""


# --- the system calls ---


def _create(path: Path) -> int:
    # Not tempfile's 0600: in a shared store the colleagues' reports read what this umask lets them.
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
    """The system calls that writing is made of, so that a test can let the k-th of them fail."""

    create: Callable[[Path], int] = _create
    extend: Callable[[Path], int] = _extend
    write: Callable[[int, memoryview], int] = os.write
    fsync: Callable[[int], None] = os.fsync
    close: Callable[[int], None] = os.close
    rename: Callable[[Path, Path], None] = os.replace
    fsync_dir: Callable[[Path], None] = _fsync_dir
    mkdir: Callable[[Path], None] = os.mkdir
    unlink: Callable[[Path], None] = os.unlink

    def with_callback(self, before: Callable[[str], None]) -> Files:
        """The same calls, each announced by its name before it is made: `before` may raise, or kill the process."""

        def announce(name: str) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                before(name)
                return getattr(self, name)(*arguments)

            return call

        return Files(**{field.name: announce(field.name) for field in fields(self)})


FILES: Final = Files()


# --- writing ---


def write_bytes(path: Path, *chunks: bytes | memoryview, files: Files = FILES) -> None:
    """Replace what is at `path` by the chunks, one after the other: all of them, or nothing has changed."""
    views = [memoryview(chunk).cast("B") for chunk in chunks]
    write_stream(path, views, sum(map(len, views)), files=files)


def write_stream(path: Path, chunks: Iterable[bytes | memoryview], size: int, *, files: Files = FILES) -> None:
    """The same for `size` bytes that nobody has to hold at once: a chunk is asked for when those before it are out."""
    beside = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}.tmp")
    with _explained(path, f"{size:,} bytes could not be written"):
        try:
            _fill(beside, (memoryview(chunk).cast("B") for chunk in chunks), files)
            files.rename(beside, path)
            files.fsync_dir(path.parent)
        except BaseException:  # Ctrl-C as well
            with suppress(OSError):  # the first failure is the one to tell of
                files.unlink(beside)
            raise


def _fill(path: Path, views: Iterable[memoryview], files: Files) -> None:
    descriptor = files.create(path)
    try:
        for view in views:
            left = view
            while left:  # one call writes 2 GiB at the most, and less on a disk that is filling up
                left = left[files.write(descriptor, left) :]
        files.fsync(descriptor)
    finally:
        files.close(descriptor)


def write_json(path: Path, document: Mapping[str, Json], *, schema: int = SCHEMA, files: Files = FILES) -> None:
    """Replace what is at `path` by `{"body": document, "schema": …, "sha256": …}`: the hash of the two before it."""
    write_bytes(path, _sealed(document, schema), files=files)


def make_folder(folder: Path, *, files: Files = FILES) -> None:
    """Make a folder and those above it where they are missing, each one flushed into the folder that holds it."""
    with _explained(folder, "this folder could not be made"):
        missing = [place for place in (folder, *folder.parents) if not place.is_dir()]
        for place in reversed(missing):
            with suppress(FileExistsError):  # another process was faster; where it is a file, the next line says so
                files.mkdir(place)
            files.fsync_dir(place)
            files.fsync_dir(place.parent)


def quarantine(path: Path, *, files: Files = FILES) -> Path:
    """Move a bad file aside and answer its new name. Nothing is deleted, and no earlier bad file is overwritten."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}{DAMAGED_SUFFIX}")
    with _explained(path, f"this file could not be set aside as {aside.name}"):
        files.rename(path, aside)
        files.fsync_dir(path.parent)
    return aside


def remove_temporary_files(folder: Path, *, files: Files = FILES) -> None:
    """Clear the strays of writers that died. Only for whoever holds the folder's lock: a live writer's would go too."""
    with suppress(OSError):  # a stray is harmless; next time, then
        for stray in folder.glob(f"{TEMPORARY_PREFIX}*.tmp"):
            files.unlink(stray)


def append_line(path: Path, text: str, *, files: Files = FILES) -> bool:
    """Add a line to a log, and say whether that worked: a log that cannot be written never ends a training.

    Not flushed to the disk, and a line cut by a death or by a full disk stays a line of its own.
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
    """The bytes of a file; where it cannot be read, a `StoreError` naming it."""
    try:
        return path.read_bytes()
    except OSError as error:
        # These two speak against the file; "permission denied" or "too many open files" do not.
        kind = DamagedError if error.errno in (errno.EIO, errno.EISDIR) else StoreError
        what = f"this file could not be read: {error.strerror or error}"
        raise kind(Problem(code="cannot-read", location=str(path), message=what)) from error


def read_json(path: Path, *, schema: int = SCHEMA) -> dict[str, Any]:
    """The body of a document that `write_json` wrote, refused unless it is to the byte what was written."""
    data = read_bytes(path)
    try:
        body, found = _unsealed(data)
    except (ValueError, RecursionError) as error:
        raise damaged_error(path, str(error)) from error
    if found != schema:  # whole, so not to be set aside
        what = f"this file is written in schema {found}, which this version of paribus does not read"
        raise StoreError(Problem(code="unknown-schema", location=str(path), message=what, valid=str(schema)))
    return body


def _sealed(body: Mapping[str, Json], schema: int) -> bytes:
    return _sealing(canonical_json({"body": body, "schema": schema}))


def _sealing(inner: bytes) -> bytes:
    """A spelt document with the hash of its spelling as its last key: `sha256` sorts behind `body` and `schema`."""
    return inner[:-1] + b',"sha256":"' + digest(inner).encode() + b'"}\n'


def _unsealed(data: bytes) -> tuple[dict[str, Any], int]:
    envelope = parse_json(data)
    if not isinstance(envelope, dict) or envelope.keys() != {"body", "schema", "sha256"}:
        raise ValueError("it is not an object with exactly the keys body, schema and sha256")
    body, schema = envelope["body"], envelope["schema"]
    inner = _spelt({"body": body, "schema": schema})
    if digest(inner) != envelope["sha256"]:
        raise ValueError("it does not have the hash that it was sealed with")
    if not isinstance(body, dict) or not isinstance(schema, int):
        raise ValueError("its body is not an object, or its schema not an integer")
    if data != _sealing(inner):  # the hash is of the meaning: a flipped bit turns \u00e9 into \u00E9
        raise ValueError("it is spelt otherwise than it was written")
    return body, schema


def damaged_error(path: Path, why: str) -> DamagedError:
    """The error for a file that is not what was written."""
    return DamagedError(
        Problem(code="damaged", location=str(path), message=f"this file was cut, edited or damaged: {why}")
    )


# --- JSON and hashes ---

_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(document: Json) -> bytes:
    """The one spelling of a document: keys sorted, no spaces, ASCII, floats that are not finite as strings."""
    return _spelt(_coded(document, "document"))


def _spelt(document: Json) -> bytes:
    """The canonical spelling of what is plain JSON already."""
    return _ENCODER.encode(document).encode()


def parse_json(data: bytes) -> Json:
    """JSON as the standard has it: UTF-8, no NaN, and no key twice; anything else is a `ValueError`."""
    try:
        document: Json = json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_refused)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return document


def parse_number(value: Json) -> float:
    """A number out of a document: a float that was not finite was coded as "nan", "inf" or "-inf"."""
    if value in ("nan", "inf", "-inf") or (isinstance(value, int | float) and not isinstance(value, bool)):
        return float(value)
    raise ValueError(f"not a number: {value!r}")


def digest(data: bytes | memoryview, *more: bytes | memoryview) -> str:
    """SHA-256 of the chunks, one after the other, in hexadecimal."""
    hashed = hashlib.sha256(data)
    for chunk in more:
        hashed.update(chunk)
    return hashed.hexdigest()


def digest_json(document: Json) -> str:
    """SHA-256 of a document's canonical spelling."""
    return digest(canonical_json(document))


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {max(names, key=names.count)!r} stands there twice")
    return document


def _refused(constant: str) -> Json:
    raise ValueError(f"{constant} is not JSON")


def _coded(value: Json, place: str) -> Json:
    """The value as JSON can spell it. What it cannot spell is our own mistake, and a `TypeError`."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):  # json would turn 1 into "1", and True into "true"
                raise TypeError(f"{place}: a key must be a string, but is {key!r}")
        return {key: _coded(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_coded(item, f"{place}[{index}]") for index, item in enumerate(value)]
    raise TypeError(f"{place}: JSON has no {type(value).__name__}")


# --- what a failing disk is told as ---

_ADVICE: Final[Mapping[int | None, str]] = {
    errno.ENOSPC: "free that much space",
    errno.EDQUOT: "free that much of your quota",
    errno.EACCES: "make the folder writable",
    errno.EPERM: "make the folder writable",
    errno.EROFS: "make the folder writable",
    errno.ENOENT: "bring the folder back",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files (ulimit -n)",
    errno.EIO: "check the disk",
}


@contextmanager
def _explained(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = _ADVICE.get(error.errno, "mend that")
        raise StoreError(
            Problem(
                code="cannot-write",
                location=str(path),
                message=f"{what}: {error.strerror or error}; nothing is half-written: {remedy}, and run it again",
            )
        ) from error


def cache_folder() -> Path:
    """The user's cache for paribus: $PARIBUS_CACHE_DIR, or the platform's usual place."""
    named = os.environ.get("PARIBUS_CACHE_DIR")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paribus"
