"""The tables of a study as lines of cells: its verdicts, the families besides, and all of its settings at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paribus.report.certificates.certificate import Certificate
from paribus.report.shown import cells
from paribus.report.shown.grid import Cell, Grid, Head, line
from paribus.report.tables.family import Family
from paribus.report.tables.row import Row
from paribus.report.tables.table import Table
from paribus.report.words import clean


def verdicts(table: Table, costs: Sequence[str] | None = None) -> Grid:
    """The baseline, and each variant with its verdict and these costs, or with all that any has."""
    costs = cells.costs(table) if costs is None else costs
    rows = (table.baseline, *table.rows)
    digits = cells.digits(table)
    return Grid(
        title=cells.title(table),
        heads=[
            Head("variant", folds="name"),
            Head("n", right=True),
            Head(clean(table.metric.rpartition("/")[2]), right=True),
            Head("difference"),
            Head("verdict", folds="verdict"),
            *(Head(cells.COSTS[name], right=True) for name in costs),
        ],
        rows=[_verdict(row, digits[row.variant], costs) for row in rows],
        narrow=[_lines(row, digits[row.variant], clean(table.metric), costs) for row in rows],
        costs=len(costs),
    )


def of_family(family: Family) -> Grid:
    """Steps say what they are steps from; effects, what they are not told apart from."""
    digits = {name: min(each, cells.FINEST) for name, each in cells.shared(family.rows).items()}  # finer is rounding
    stepped = any(row.against for row in family.rows)
    names = [Head("rung", folds="name"), Head("from", folds="name")] if stepped else [Head("effect", folds="name")]
    called = [(clean(", or ".join((row.variant, *row.aliases))), clean(row.against)) for row in family.rows]
    found = [(row, cells.difference(row, digits[row.variant])) for row in family.rows]
    return Grid(
        title=clean(family.title),
        heads=[*names, Head("n", right=True), Head("difference"), Head("verdict", folds="verdict")],
        rows=[
            line([*name[: len(names)], cells.count(row), difference, cells.verdict(row)], row.kind)
            for name, (row, difference) in zip(called, found, strict=True)
        ],
        narrow=[
            [
                Cell(" from ".join(name[: len(names)])),
                Cell(cells.verdict(row), row.kind),
                Cell(f"{difference}, n {cells.count(row)}"),
            ]
            for name, (row, difference) in zip(called, found, strict=True)
        ],
    )


def overview(table: Table) -> Grid:
    """Every variant of any setting, and what came of it in each."""
    rows = [{row.variant: row for row in each.rows} for each in table.every]
    digits = [cells.digits(each) for each in table.every]
    names = list(dict.fromkeys(row.variant for each in table.every for row in each.rows))
    found = [
        [
            Cell(_glance(own[name], decimals[name]), own[name].kind) if name in own else Cell(cells.NONE)
            for own, decimals in zip(rows, digits, strict=True)
        ]
        for name in names
    ]
    return Grid(
        title=cells.title(table),
        heads=[Head("variant", folds="name"), *(Head(clean(each.setting)) for each in table.every)],
        rows=[[Cell(clean(name)), *told] for name, told in zip(names, found, strict=True)],
    )


def certificates(found: Mapping[str, Certificate]) -> list[tuple[str, str, str]]:
    """Whether each holds, as a mark; of what it is, and what it says."""
    return [("✓" if each.ok else "✗", clean(name), clean(each.text)) for name, each in found.items()]


def certificates_of(family: Family) -> list[tuple[str, str, str]]:
    """The same of steps, with what each is from."""
    below = {row.variant: row.against for row in family.rows}
    return certificates({f"{name}, from {below[name]}": each for name, each in family.certificates.items()})


def _verdict(row: Row, digits: int, costs: Sequence[str]) -> list[Cell]:
    first = (clean(row.variant), cells.count(row), cells.number(row.mean, digits), cells.difference(row, digits))
    kind = row.kind if row.kind == "baseline" else ""  # which is no verdict: all of its row is shown alike
    told = [Cell(text, kind) for text in (*first, cells.verdict(row), *(cells.cost(row, name) for name in costs))]
    told[len(first)] = told[len(first)]._replace(kind=row.kind)
    return told


def _lines(row: Row, digits: int, metric: str, costs: Sequence[str]) -> list[Cell]:
    told = [Cell(cells.difference(row, digits))] if row.difference is not None else []
    return [
        Cell(clean(row.variant)),
        Cell(cells.verdict(row), row.kind),
        *told,
        Cell(f"{metric} {cells.number(row.mean, digits)}, n {cells.count(row)}"),
        Cell(", ".join(f"{cells.COSTS[name]} {cells.cost(row, name)}" for name in costs), "aside"),
    ]


def _glance(row: Row, decimals: int) -> str:
    """`+0.031 worse`."""
    return f"{cells.figure(row, decimals)} {row.kind}".strip()
