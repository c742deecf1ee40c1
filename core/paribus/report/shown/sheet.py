"""The table of a study as a plain grid: for CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paribus.report.shown import besides, cells
from paribus.report.shown.grid import Grid, Head
from paribus.report.tables.family import Family
from paribus.report.tables.row import Row
from paribus.report.tables.table import Table
from paribus.report.words import clean


def grid_of(table: Table) -> Grid:
    """Variants as rows, of each setting in turn; what terminals draw, a paper says in numbers."""
    costs = cells.costs(table)
    several = bool(table.further)
    rows = [(each, row) for each in table.every for row in (each.baseline, *each.rows)]
    digits = {each.setting: cells.digits(each) for each in table.every}
    metric = clean(table.metric.rpartition("/")[2])
    return Grid(
        title=cells.title(table),
        heads=(
            *([Head("setting")] if several else []),
            Head("variant"),
            Head("n", right=True),
            Head(metric, right=True),
            Head("difference"),
            Head("verdict"),
            *(Head(cells.COSTS[name], right=True) for name in costs),
        ),
        rows=[
            [*([clean(each.setting)] if several else []), *_cells(row, digits[each.setting][row.variant], costs)]
            for each, row in rows
        ],
        styles=["" for _ in rows],
        remarks=_remarks(table),
        records=[
            *({**({"setting": each.setting} if several else {}), **row.to_json(table.metric)} for each, row in rows),
            *_records(table),
        ],
        further=[_family(each, family) for each in table.every for family in each.besides],
    )


def _records(table: Table) -> Iterator[dict[str, Any]]:
    """The steps and effects as rows like the others: `family` says which they are of."""
    for each in table.every:
        setting = {"setting": each.setting} if table.further else {}
        for family in each.besides:
            for row in family.to_json()["rows"]:
                plain = {key: ", or ".join(value) if key == "aliases" else value for key, value in row.items()}
                yield {**setting, "variant": plain.pop("name"), "metric": table.metric, **plain, "family": family.key}


def _family(table: Table, family: Family) -> Grid:
    heads = [Head(name, right=name == "n") for name in besides.headers(family)]
    rows = [texts for _, texts in besides.lines(family)]
    setting = f", {clean(table.setting)}" if table.setting else ""
    said = [clean(line) for line in family.caption]
    title = f"{clean(table.study)}: {clean(family.title)}{setting}"
    return Grid(title=title, heads=heads, rows=rows, styles=["" for _ in rows], remarks=[("·", said)])


def _remarks(table: Table) -> list[tuple[str, list[str]]]:
    """What is said of any setting, each line once, and of all of them together."""
    found: dict[str, dict[str, None]] = {}
    for each in table.every:
        for mark, lines in cells.remarks(each):
            found.setdefault(mark, {}).update(dict.fromkeys(lines))
    said = [clean(line) for section in table.sections for line in section.lines]
    return [(mark, [*(said if mark == "-" else ()), *lines]) for mark, lines in found.items()]


def _cells(row: Row, digits: int, costs: list[str]) -> list[str]:
    return [
        clean(row.variant),
        cells.count(row),
        cells.number(row.mean, digits),
        cells.difference(row, digits),
        cells.verdict(row),
        *(cells.cost(row, name) for name in costs),
    ]
