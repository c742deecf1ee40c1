"""Files of labelled examples for the prompt of a language model."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from paribus.errors import DataError, Problem, join_names

FIELDS: Final = ("text", "label", "pair")
DELIMITERS: Final = {".csv": ",", ".tsv": "\t"}


def read_examples(path: Path) -> list[tuple[str, ...]]:
    """Return (text, label), or (text, label, second text), of each row of a CSV, TSV or JSON-lines file."""
    if path.suffix not in (*DELIMITERS, ".jsonl"):
        valid = "a .csv or .tsv file with a header, or a .jsonl file"
        raise _error(str(path), f"the format {path.suffix or '(none)'} is not read", valid)
    try:
        rows = list(_rows(path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _error(str(path), f"it cannot be read: {error}", "a file of text in UTF-8") from error
    if not rows:
        raise _error(str(path), "it has no example", "one or more rows")
    return [_example(location, row) for location, row in rows]


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
                raise _error(location, f"it is not JSON: {error.msg}", "a JSON object in each line") from error
            if document is not None and not isinstance(document, dict):
                raise _error(location, "it is no JSON object", '{"text": "…", "label": "…"}')
            if document is not None:
                yield location, document


def _example(location: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    values = [str(value) if isinstance(value, int) else value for value in map(row.get, FIELDS)]
    for field, value in zip(FIELDS[:2], values, strict=False):
        if not isinstance(value, str) or not value.strip():
            found = join_names(str(name) for name in row) or "none"
            message, valid = f"it has no `{field}`; its fields are {found}", "`text`, `label` and, of pairs, `pair`"
            raise _error(location, message, valid)
    return tuple(str(value) for value in values if value)


def _error(location: str, message: str, valid: str) -> DataError:
    return DataError(Problem(code="invalid-line", location=location, message=message, valid=valid))
