"""Files of labelled examples for the prompt of a language model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from paribus.errors import join_names
from paribus.storage.table_file import read_rows, row_error

FIELDS: Final = ("text", "label", "pair")


def read_examples(path: Path) -> list[tuple[str, ...]]:
    """Return (text, label), or (text, label, second text), of each row of a CSV, TSV or JSON-lines file."""
    return [_example(location, row) for location, row in read_rows(path)]


def _example(location: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    values = [str(value) if isinstance(value, int) else value for value in map(row.get, FIELDS)]
    for field, value in zip(FIELDS[:2], values, strict=False):
        if not isinstance(value, str) or not value.strip():
            found = join_names(str(name) for name in row) or "none"
            message, valid = f"it has no `{field}`; its fields are {found}", "`text`, `label` and, of pairs, `pair`"
            raise row_error(location, message, valid)
    return tuple(str(value) for value in values if value)
