"""Rows of plain numbers as CSV, for a spreadsheet or a data frame."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

from paribus.report.words import clean

FORMULA: Final = ("=", "+", "-", "@")  # what a spreadsheet would run, were it the first letter of a text


def separated(rows: Sequence[Mapping[str, Any]]) -> str:
    """A header and a line a row; what is not known is empty, and no text is a formula."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([[_cell(row.get(head)) for head in heads] for row in rows])
    return file.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return "" if value is None else value
    text = clean(value)
    return f"'{text}" if text.startswith(FORMULA) else text
