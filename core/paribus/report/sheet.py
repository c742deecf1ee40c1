"""The table of a study as a plain grid: for CSV and LaTeX."""

from __future__ import annotations

from paribus.report import cells
from paribus.report.grid import Grid, Head
from paribus.report.table import Row, Table


def grid_of(table: Table) -> Grid:
    """Variants as rows; what terminals draw, a paper says in numbers."""
    costs = cells.costs(table)
    digits = cells.digits(table)
    rows = (table.baseline, *table.rows)
    metric = cells.clean(table.metric.rpartition("/")[2])
    return Grid(
        title=cells.title(table),
        heads=(
            Head("variant"),
            Head("n", right=True),
            Head(metric, right=True),
            Head("difference"),
            Head("verdict"),
            *(Head(cells.COSTS[name], right=True) for name in costs),
        ),
        rows=[_cells(row, digits[row.variant], costs) for row in rows],
        styles=["" for _ in rows],
        remarks=cells.remarks(table),
        records=[row.to_json(table.metric) for row in rows],
    )


def _cells(row: Row, digits: int, costs: list[str]) -> list[str]:
    return [
        cells.clean(row.variant),
        cells.count(row),
        cells.number(row.mean, digits),
        cells.difference(row, digits),
        cells.verdict(row),
        *(cells.cost(row, name) for name in costs),
    ]
