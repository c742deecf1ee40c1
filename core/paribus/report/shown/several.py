"""A table with further ones beside it: one comparison in several settings, seen at a glance, and then one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, final

from paribus.report.shown import cells
from paribus.report.tables.row import Row
from paribus.report.tables.table import Table


@final
class Glance(NamedTuple):
    """A row of the overview: a variant, and what came of it in each setting, with the row that says so."""

    variant: str
    found: tuple[tuple[str, Row | None], ...]


def glances(table: Table) -> list[Glance]:
    """Every variant of any setting, in order."""
    digits = [cells.digits(each) for each in table.every]
    rows = [{row.variant: row for row in each.rows} for each in table.every]
    names = dict.fromkeys(row.variant for each in table.every for row in each.rows)
    return [
        Glance(
            name,
            tuple(
                (_cell(own[name], decimals[name]) if name in own else cells.NONE, own.get(name))
                for own, decimals in zip(rows, digits, strict=True)
            ),
        )
        for name in names
    ]


def _cell(row: Row, decimals: int) -> str:
    """`+0.031 worse`."""
    return f"{figure(row, decimals)} {row.kind}".strip()


def figure(row: Row, decimals: int) -> str:
    """A difference without its interval, which would say why it has no more decimals: up to two more, where it is 0."""
    if row.difference is None:
        return ""
    own = cells.decimals(row.difference)
    return cells.number(row.difference, max(decimals, min(own, decimals + 2)), signed=True)


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
