"""The table of a study in a terminal: its verdicts with a picture of their intervals, and what is said with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from paribus.report.shown import cells, grids, several
from paribus.report.shown.drawing import Pen, as_text, printed
from paribus.report.shown.forest import Forest
from paribus.report.shown.grid import Cell, Head
from paribus.report.tables.table import Table
from paribus.report.words import clean

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def show(table: Table, console: Console | None = None) -> None:
    """Prints a table."""
    printed(partial(_parts, table), console)


def rendered(table: Table, width: int, *, color: bool = False) -> str:
    """The same as text, in so many columns."""
    return as_text(partial(_parts, table), width, color=color)


def _parts(table: Table, pen: Pen) -> Iterator[RenderableType]:
    """A table; or, of a study in several settings, all of them at a glance, what is said of them, and each in full."""
    yield pen.title(cells.title(table))
    yield ""
    if table.further:
        yield from pen.grid(grids.overview(table))
    for section in table.sections:
        yield from ("", pen.title(clean(section.title)), "")
        yield pen.marked([("-", clean(line)) for line in section.lines])
    if not table.further:
        yield from ("",) if table.sections else ()
        yield from _body(table, pen)
        return
    common, own = several.parted(table)
    for each in own:
        yield from ("", pen.title(clean(each.setting)), "")
        yield from _body(each, pen)
    yield from pen.remarks(cells.remarks(common))


def _body(table: Table, pen: Pen) -> Iterator[RenderableType]:
    """Verdicts and costs, certificates, the families besides, and what else has to be said."""
    yield from pen.grid(grids.verdicts(table), partial(_picture, table))
    yield ""
    if certificates := grids.certificates(table.certificates):
        yield pen.marked([(mark, f"{name}: {text}") for mark, name, text in certificates])
    for family in table.besides:
        yield from ("", pen.title(clean(family.title)))
        yield from pen.grid(grids.of_family(family))
        told = [(mark, f"{name}: {text}") for mark, name, text in grids.certificates_of(family)]
        yield pen.marked([*told, *(("·", clean(line)) for line in family.caption)])
    yield from pen.remarks(cells.remarks(table))


def _picture(table: Table, width: int) -> tuple[Head, Sequence[Cell]]:
    """A column with the intervals, each in its line."""
    forest = Forest(table, width)
    sides = ("better", "worse") if table.better == "lower" else ("worse", "better")
    header = sides[0] + sides[1].rjust(forest.width - len(sides[0]))
    return Head(header), [Cell(forest.line(row), row.kind) for row in (table.baseline, *table.rows)]
