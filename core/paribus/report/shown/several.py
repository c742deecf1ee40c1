"""A table with further ones beside it: what is said of all of them, and what of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paribus.report.tables.table import Table


def parted(table: Table) -> tuple[Table, list[Table]]:
    """What is said under all tables alike, as the remarks of one; and the tables, each with what it alone says."""
    own: list[Table] = list(table.every)
    common = table
    for field in ("warnings", "notes", "caption"):
        alike = _alike([getattr(each, field) for each in table.every])
        common = replace(common, **{field: alike})  # type: ignore[arg-type]  # each of them is a tuple of lines
        own = [
            replace(each, **{field: tuple(line for line in getattr(each, field) if line not in alike)})  # type: ignore[arg-type]  # as above
            for each in own
        ]
    return common, own


def _alike(said: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(line for line in said[0] if all(line in lines for lines in said))
