"""Rows of JSON lines, CSV and Parquet, one at a time: no file is held whole, and what is wrong names its place."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paribus import DataError, Problem

BOM = b"\xef\xbb\xbf"
READ = 1024  # rows of a Parquet file at a time

Wrong = Callable[[str, object, str, str], None]  # a code, a place, what was found, what would do


class Row(NamedTuple):
    where: str  # a path and a line, or a path and a row
    values: dict[str, Any]


def rows(path: Path, fields: Sequence[str], wrong: Wrong) -> Iterator[Row]:
    """The rows of a file, each of which has all of `fields`."""
    return _READ[path.suffix.lower()](path, fields, wrong)


def lines(path: Path, wrong: Wrong) -> Iterator[tuple[int, str]]:
    """The lines of UTF-8, with their ends and their numbers, up to the first that is none."""
    offset = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                begin = len(BOM) if number == 1 and line.startswith(BOM) else 0
                try:
                    text = line[begin:].decode()
                except UnicodeDecodeError as error:
                    at = begin + error.start
                    what = f"it is not UTF-8: byte {line[at]:#04x} at offset {offset + at:,}"
                    return wrong("not-utf8", f"{path}:{number}", what, UTF8)
                yield number, text
                offset += len(line)
    except OSError as error:
        wrong("cannot-read", path, f"it cannot be read: {error.strerror}", "a file that you may read")
    return None


UTF8 = "UTF-8 (iconv -f latin1 -t utf-8 converts)"


def _json(path: Path, fields: Sequence[str], wrong: Wrong) -> Iterator[Row]:
    valid = "one object a line, such as {" + ", ".join(f'"{field}": "…"' for field in fields) + "}"
    for number, line in lines(path, wrong):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            wrong("broken-json", where, f"this line is no JSON: {error}", valid)
            continue
        if not isinstance(value, dict):
            wrong("broken-json", where, f"this line is no object, but {type(value).__name__}", valid)
        elif _has(value, fields, where, wrong):
            yield Row(where, value)


def _csv(path: Path, fields: Sequence[str], wrong: Wrong) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)  # of the whole process; a text may be longer than 128 KiB
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = csv.reader((line for _, line in lines(path, wrong)), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        where = f"{path}:{reader.line_num + 1}"
        try:
            row = next(reader, None)
        except csv.Error as error:
            return wrong("broken-csv", where, f"this row is no CSV: {error}", 'quotes that are closed, and "" for one')
        if row is None:
            return None
        if header is None:
            header = row
            if row and not _has(dict.fromkeys(header), fields, where, wrong):
                return None
        elif row and len(row) != len(header):
            what = f"this row has {len(row)} fields, and the header has {len(header)}"
            wrong("broken-csv", where, what, "as many; a text with a comma or a line break stands in quotes")
        elif row:
            yield Row(where, dict(zip(header, row, strict=True)))


def _parquet(path: Path, fields: Sequence[str], wrong: Wrong) -> Iterator[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        what = "reading Parquet takes pyarrow, which is not installed"
        valid = "pip install 'paribus[parquet]'"
        raise DataError(
            Problem(code="not-installed", path="corpus.path", location=str(path), message=what, valid=valid)
        ) from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            if not _has(dict.fromkeys(file.schema_arrow.names), fields, path, wrong):
                return
            for batch in file.iter_batches(batch_size=READ, columns=list(fields)):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}, row {number:,}", values)
    except (OSError, pyarrow.ArrowException) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        wrong("broken-parquet", path, f"it cannot be read behind row {number:,}: {first}", "a whole Parquet file")


def _has(values: dict[str, Any], fields: Sequence[str], where: object, wrong: Wrong) -> bool:
    missing = [field for field in fields if field not in values]
    keys = ", ".join(map(repr, list(values)[:8])) or "none"
    for field in missing:
        wrong("no-field", where, f"there is no field {field!r}", f"a field of the rows: {keys}")
    return not missing


_READ = {".jsonl": _json, ".csv": _csv, ".tsv": _csv, ".parquet": _parquet}
TABLES = tuple(_READ)
