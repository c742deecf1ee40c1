"""The overview of several settings in a terminal: side by side where there is room, else one below the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from paribus.report.shown import cells
from paribus.report.shown.several import glances
from paribus.report.tables.row import Row
from paribus.report.tables.table import Table
from paribus.report.words import clean

if TYPE_CHECKING:
    from rich.console import RenderableType

NAMES: Final = range(40, 11, -1)  # places that names may be folded to, the best first
GAP: Final = 2

Cell = tuple[str, Row | None]


def glance_of(
    table: Table, width: int, plain: Callable[[str], str], styles: Mapping[str, str]
) -> Iterator[RenderableType]:
    """Every variant in every setting, in so many columns; `plain` gives the letters that the console has."""
    settings = [plain(clean(each.setting)) for each in table.every]
    found: list[tuple[str, list[Cell]]] = [
        (plain(clean(each.variant)), [(plain(text), row) for text, row in each.found]) for each in glances(table)
    ]
    for name in NAMES:
        rows: list[list[Cell]] = [[(cells.folded(variant, name), None), *told] for variant, told in found]
        if _needed(["variant", *settings], rows) <= width:
            yield _grid(["variant", *settings], rows, styles)
            return
    yield from _stacked(settings, found, styles)


def _needed(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> int:
    from rich.cells import cell_len

    columns = zip(*rows, strict=True)
    widest = [max(cell_len(line) for text, _ in column for line in text.split("\n")) for column in columns]
    return sum(max(cell_len(header), each) + GAP for header, each in zip(headers, widest, strict=True)) - GAP


def _grid(headers: Sequence[str], rows: Sequence[Sequence[Cell]], styles: Mapping[str, str]) -> RenderableType:
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for header in headers:
        grid.add_column(Text(header), no_wrap=True)
    for row in rows:
        grid.add_row(*(Text(text, style=styles[own.kind] if own is not None else "") for text, own in row))
    return grid


def _stacked(
    settings: Sequence[str], found: Sequence[tuple[str, Sequence[Cell]]], styles: Mapping[str, str]
) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    for variant, told in found:
        yield Text(variant, style="bold")
        for setting, (text, row) in zip(settings, told, strict=True):
            line = Text(f"{setting}: ", overflow="fold").append(text, style=styles[row.kind] if row is not None else "")
            yield Padding(line, (0, 0, 0, 2))
