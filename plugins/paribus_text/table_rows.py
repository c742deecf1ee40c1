"""Rows of JSON lines, CSV and Parquet files, read one at a time; problems are reported with their location."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paribus import DataError, missing_package

BOM = b"\xef\xbb\xbf"
BATCH = 1024  # rows of a Parquet file that are read at a time

AddProblem = Callable[[str, object, str, str], None]  # code, location, message, valid values


class Row(NamedTuple):
    location: str  # a path and a line, or a path and a row
    values: dict[str, Any]


def rows(path: Path, fields: Sequence[str], add_problem: AddProblem) -> Iterator[Row]:
    """Yield the rows of a file that have all of `fields`."""
    return _READERS[path.suffix.lower()](path, fields, add_problem)


def lines(path: Path, add_problem: AddProblem) -> Iterator[tuple[int, str]]:
    """Yield the numbers and lines of a file, with line ends, up to the first that is not UTF-8."""
    offset = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                start = len(BOM) if number == 1 and line.startswith(BOM) else 0
                try:
                    text = line[start:].decode()
                except UnicodeDecodeError as error:
                    position = start + error.start
                    message = f"not UTF-8: byte {line[position]:#04x} at offset {offset + position:,}"
                    return add_problem("not-utf8", f"{path}:{number}", message, UTF8)
                yield number, text
                offset += len(line)
    except OSError as error:
        add_problem("cannot-read", path, f"cannot read the file: {error.strerror}", "a readable file")
    return None


UTF8 = "UTF-8 (iconv -f latin1 -t utf-8 converts)"


def _json(path: Path, fields: Sequence[str], add_problem: AddProblem) -> Iterator[Row]:
    valid = "one object per line, such as {" + ", ".join(f'"{field}": "…"' for field in fields) + "}"
    for number, line in lines(path, add_problem):
        location = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            add_problem("broken-json", location, f"invalid JSON: {error}", valid)
            continue
        if not isinstance(value, dict):
            add_problem("broken-json", location, f"expected an object, got {type(value).__name__}", valid)
        elif _has_fields(value, fields, location, add_problem):
            yield Row(location, value)


def _csv(path: Path, fields: Sequence[str], add_problem: AddProblem) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)  # a process-wide limit; a text may be longer than 128 KiB
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = csv.reader((line for _, line in lines(path, add_problem)), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        location = f"{path}:{reader.line_num + 1}"
        try:
            row = next(reader, None)
        except csv.Error as error:
            return add_problem("broken-csv", location, f"invalid CSV: {error}", 'closed quotes, and "" for a quote')
        if row is None:
            return None
        if header is None:
            header = row
            if row and not _has_fields(dict.fromkeys(header), fields, location, add_problem):
                return None
        elif row and len(row) != len(header):
            message = f"expected {len(header)} fields, as in the header, got {len(row)}"
            add_problem("broken-csv", location, message, "quotes around a text with a comma or a line break")
        elif row:
            yield Row(location, dict(zip(header, row, strict=True)))


def _parquet(path: Path, fields: Sequence[str], add_problem: AddProblem) -> Iterator[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            missing_package("pyarrow", "parquet", "a Parquet file", path="corpus.path", location=str(path))
        ) from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            if not _has_fields(dict.fromkeys(file.schema_arrow.names), fields, path, add_problem):
                return
            for batch in file.iter_batches(batch_size=BATCH, columns=list(fields)):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}, row {number:,}", values)
    except (OSError, pyarrow.ArrowException) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        message = f"cannot read the rows after row {number:,}: {reason}"
        add_problem("broken-parquet", path, message, "an intact Parquet file")


def _has_fields(values: dict[str, Any], fields: Sequence[str], location: object, add_problem: AddProblem) -> bool:
    missing = [field for field in fields if field not in values]
    if not missing:
        return True
    keys = ", ".join(map(repr, list(values)[:8])) or "none"
    for field in missing:
        add_problem("missing-field", location, f"unknown field {field!r}", f"a field of the rows: {keys}")
    return False


_READERS = {".jsonl": _json, ".csv": _csv, ".tsv": _csv, ".parquet": _parquet}
TABLES = tuple(_READERS)
