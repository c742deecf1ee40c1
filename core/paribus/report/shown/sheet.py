"""The tables of a study in one: for CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from paribus.report.shown import cells, grids
from paribus.report.shown.grid import Cell, Grid, Head
from paribus.report.tables.family import Family
from paribus.report.tables.table import Table
from paribus.report.words import clean


def grid_of(table: Table) -> Grid:
    """Variants as rows, of each setting in turn; what terminals draw, a paper says in numbers."""
    costs = cells.costs(table)
    every = [grids.verdicts(each, costs) for each in table.every]
    several = bool(table.further)
    return replace(
        every[0],
        heads=[*([Head("setting")] if several else []), *every[0].heads],
        rows=[
            [*([Cell(clean(each.setting))] if several else []), *row]
            for each, grid in zip(table.every, every, strict=True)
            for row in grid.rows
        ],
        narrow=(),
        costs=0,
        remarks=_remarks(table),
        records=[*_records(table)],
        further=[_family(each, family) for each in table.every for family in each.besides],
    )


def _records(table: Table) -> Iterator[dict[str, Any]]:
    """The rows as plain numbers, and after them the steps and effects: `family` says which they are of."""
    settings = [({"setting": each.setting} if table.further else {}, each) for each in table.every]
    for setting, each in settings:
        for row in (each.baseline, *each.rows):
            yield {**setting, **row.to_json(table.metric)}
    for setting, each in settings:
        for family in each.besides:
            for row in family.rows:
                aliases = {"aliases": ", or ".join(row.aliases)} if row.aliases else {}
                plain = {"variant": row.variant, "metric": table.metric, **row.told(), **aliases}
                yield {**setting, **plain, "family": family.key}


def _family(table: Table, family: Family) -> Grid:
    setting = f", {clean(table.setting)}" if table.setting else ""
    title = f"{clean(table.study)}: {clean(family.title)}{setting}"
    return replace(grids.of_family(family), title=title, remarks=[("·", [clean(line) for line in family.caption])])


def _remarks(table: Table) -> list[tuple[str, list[str]]]:
    """What is said of any setting, each line once, and of all of them together."""
    found: dict[str, dict[str, None]] = {}
    for each in table.every:
        for mark, lines in cells.remarks(each):
            found.setdefault(mark, {}).update(dict.fromkeys(lines))
    said = [clean(line) for section in table.sections for line in section.lines]
    return [(mark, [*(said if mark == "-" else ()), *lines]) for mark, lines in found.items()]
