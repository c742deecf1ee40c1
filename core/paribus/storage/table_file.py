"""Rows of small tables: CSV and TSV files with a header, and JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from paribus.errors import DataError, Problem

DELIMITERS: Final = {".csv": ",", ".tsv": "\t"}


def read_rows(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the rows of a file with their locations; fields of CSV and TSV files are text."""
    if path.suffix not in (*DELIMITERS, ".jsonl"):
        valid = "a .csv or .tsv file with a header, or a .jsonl file"
        raise row_error(str(path), f"the format {path.suffix or '(none)'} is not read", valid)
    try:
        rows = list(_rows(path))
    except FileNotFoundError as error:
        raise row_error(str(path), "the file does not exist", "a path") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise row_error(str(path), f"it cannot be read: {error}", "a file of text in UTF-8") from error
    if not rows:
        raise row_error(str(path), "it has no row", "one or more rows")
    return rows


def row_error(location: str, message: str, valid: str) -> DataError:
    return DataError(Problem(code="invalid-line", location=location, message=message, valid=valid))


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        if path.suffix in DELIMITERS:
            reader = csv.DictReader(lines, delimiter=DELIMITERS[path.suffix], strict=True)
            for row in reader:
                yield f"{path}:{reader.line_num}", row
            return
        for number, line in enumerate(lines, start=1):
            location = f"{path}:{number}"
            try:
                document = json.loads(line) if line.strip() else None
            except json.JSONDecodeError as error:
                raise row_error(location, f"it is not JSON: {error.msg}", "a JSON object in each line") from error
            if document is not None and not isinstance(document, dict):
                raise row_error(location, "it is no JSON object", "an object of names and values in each line")
            if document is not None:
                yield location, document
