"""The table of a study as a plain grid: for CSV and LaTeX."""

from __future__ import annotations

from paribus.report import cells
from paribus.report.grid import Grid, Head
from paribus.report.table import Row, Table


def grid_of(table: Table) -> Grid:
    """Variants as rows, of each setting in turn; what terminals draw, a paper says in numbers."""
    costs = cells.costs(table)
    several = bool(table.further)
    rows = [(each, row) for each in table.every for row in (each.baseline, *each.rows)]
    digits = {each.setting: cells.digits(each) for each in table.every}
    metric = cells.clean(table.metric.rpartition("/")[2])
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
            [*([cells.clean(each.setting)] if several else []), *_cells(row, digits[each.setting][row.variant], costs)]
            for each, row in rows
        ],
        styles=["" for _ in rows],
        remarks=_remarks(table),
        records=[{**({"setting": each.setting} if several else {}), **row.to_json(table.metric)} for each, row in rows],
    )


def _remarks(table: Table) -> list[tuple[str, list[str]]]:
    """What is said of any setting, each line once, and of all of them together."""
    found: dict[str, dict[str, None]] = {}
    for each in table.every:
        for mark, lines in cells.remarks(each):
            found.setdefault(mark, {}).update(dict.fromkeys(lines))
    said = [cells.clean(line) for section in table.sections for line in section.lines]
    return [(mark, [*(said if mark == "-" else ()), *lines]) for mark, lines in found.items()]


def _cells(row: Row, digits: int, costs: list[str]) -> list[str]:
    return [
        cells.clean(row.variant),
        cells.count(row),
        cells.number(row.mean, digits),
        cells.difference(row, digits),
        cells.verdict(row),
        *(cells.cost(row, name) for name in costs),
    ]
