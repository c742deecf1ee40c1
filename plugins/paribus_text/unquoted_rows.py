"""Rows of tab-separated files without quotes, as GLUE has them: a quote is a character of the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from paribus_text.table_rows import AddProblem, Row, lines


def unquoted_rows(
    path: Path, fields: Sequence[str], header: Sequence[str], add_problem: AddProblem, dropped: Counter[str]
) -> Iterator[Row]:
    """Yield the rows of a file that have all columns; `header` names them, or is empty if the first line does.

    Rows with another number of columns, which some files of GLUE have, are dropped and counted.
    """
    names = list(header)
    for number, line in lines(path, add_problem):
        values = line.rstrip("\r\n").split("\t")
        if not names:
            names = [name.strip() for name in values]
            missing = [field for field in fields if field not in names]
            if missing:
                message = f"unknown column {missing[0]!r} in the first line"
                return add_problem("missing-field", f"{path}:{number}", message, f"{', '.join(map(repr, fields))}")
        elif len(values) == len(names):
            yield Row(f"{path}:{number}", {name: value.strip() for name, value in zip(names, values, strict=True)})
        elif line.strip():
            dropped["rows with another number of columns"] += 1
    return None
