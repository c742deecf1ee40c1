"""Layout of a LaTeX table: the largest font and the fewest line breaks with which it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from paribus.analysis.formatting import Cell, Column, Grid
from paribus.report.latex_text import SIGN, breakable, escaped, pieces, text_width
from paribus.report.table_views import CLAIMED

# All widths are in points. A column is that of the narrowest two-column styles, a page that of `article` at 10 points.
COLUMN_WIDTH: Final = 219.0
PAGE_WIDTH: Final = 345.0
SLACK: Final = 2.0  # added to a column whose cells wrap, as widths are estimates
GAP: Final = 5.0  # between two columns of a table
MIN_NAME_WIDTH: Final = 56.0  # narrower names are hard to read
SIZES: Final = ((8.0, False), (7.0, False), (8.0, True), (7.0, True), (6.0, True))  # (font size, cells may wrap)


@final
@dataclass(frozen=True, kw_only=True)
class Layout:
    """The sizes of a table that fits."""

    grid: Grid
    size: float  # font size in points
    widths: Sequence[float]  # width of each column in points
    wrapped: Sequence[bool]  # cells of the column may have several lines
    limit: float  # width in points that it must not exceed, if possible

    @property
    def width(self) -> float:
        return sum(self.widths) + GAP * (len(self.widths) - 1)

    @property
    def fits(self) -> bool:
        return self.width <= self.limit

    @property
    def alignments(self) -> list[str]:
        letters = ("r" if column.align_right else "l" for column in self.grid.columns)
        return [
            f"p{{{width:.0f}pt}}" if wraps else letter
            for letter, width, wraps in zip(letters, self.widths, self.wrapped, strict=True)
        ]

    @property
    def row_end(self) -> str:
        return r"\tabularnewline" if self.wrapped[-1] else r"\\"

    def heading(self, index: int) -> str:
        """Return a heading, in several lines if it is wider than its column."""
        column = self.grid.columns[index]
        lines = [""]
        for piece in pieces(column.name):
            if lines[-1] and text_width((lines[-1] + piece).rstrip(), self.size) > self.widths[index]:
                lines.append("")
            lines[-1] += piece
        text = r"\\".join(escaped(line.rstrip()) for line in lines)
        return rf"\shortstack[{'r' if column.align_right else 'l'}]{{{text}}}" if len(lines) > 1 else text

    def cell(self, index: int, cell: Cell) -> str:
        """Return a cell. A leading `[` or `*` is protected, as LaTeX would read it as an argument of the row before."""
        column = self.grid.columns[index]
        if self.wrapped[index]:
            indent = r"\hangindent=1em" if column.wrap == "name" else ""
            text = rf"\raggedright{indent} {breakable(cell.text)}" if cell.text else ""
        else:
            text = SIGN.sub("$-$", escaped(cell.text))
            text = f"{{}}{text}" if cell.text.startswith(("[", "*")) else text
        text = rf"\textbf{{{text}}}" if cell.kind in CLAIMED else text
        return rf"{text}\textsuperscript{{{cell.note}}}" if cell.note else text


def fit(grid: Grid, limits: Sequence[float]) -> Layout:
    """Return the first layout that fits into one of the widths, which increase; if none fits, the smallest."""
    for limit in limits:
        for size, wrap in SIZES:
            layout = _layout(grid, size, limit, wrap=wrap)
            if layout.fits:
                return layout
    return layout


def _layout(grid: Grid, size: float, limit: float, *, wrap: bool) -> Layout:
    """Return a layout within the limit, if possible; columns of names become narrower before other columns."""
    natural = [
        max([text_width(column.name, size), *_cell_widths(grid, index, size)])
        for index, column in enumerate(grid.columns)
    ]
    minimum = [_minimum_width(grid, index, size, wrap=wrap) for index in range(len(grid.columns))]
    if sum(natural) + GAP * (len(natural) - 1) <= limit:
        minimum = natural
    widths = [
        natural_width if column.wrap == "name" else minimum_width
        for natural_width, minimum_width, column in zip(natural, minimum, grid.columns, strict=True)
    ]
    excess = sum(widths) + GAP * (len(widths) - 1) - limit
    while excess > 0 and any(width > minimum[index] for index, width in enumerate(widths)):
        index = max(range(len(widths)), key=lambda column: (widths[column] > minimum[column], widths[column]))
        step = min(excess, 1.0, widths[index] - minimum[index])
        widths[index], excess = widths[index] - step, excess - step
    wrapped = [
        not column.align_right and width < max(_cell_widths(grid, index, size))
        for index, (column, width) in enumerate(zip(grid.columns, widths, strict=True))
    ]
    return Layout(grid=grid, size=size, widths=widths, wrapped=wrapped, limit=limit)


def _cell_widths(grid: Grid, index: int, size: float) -> list[float]:
    """Return the widths of the cells of a column."""
    return [_cell_width(row[index], size) for row in grid.rows] or [0.0]


def _cell_width(cell: Cell, size: float) -> float:
    bold = 1.16 if cell.kind in CLAIMED else 1.0
    return bold * text_width(cell.text, size) + size * 0.45 * len(cell.note)


def _minimum_width(grid: Grid, index: int, size: float, *, wrap: bool) -> float:
    """Return the minimum width of a column: of its widest piece if cells may wrap, else of its widest cell."""
    column: Column = grid.columns[index]
    heading = max((text_width(piece.rstrip(), size) for piece in pieces(column.name)), default=0.0)
    cells = _cell_widths(grid, index, size)
    if column.wrap == "name" or (wrap and not column.align_right):
        parts = [row[index]._replace(text=piece.rstrip()) for row in grid.rows for piece in pieces(row[index].text)]
        indent = size if column.wrap == "name" else 0.0
        widest = indent + SLACK + max((_cell_width(part, size) for part in parts), default=0.0)
        lower_bound = 0.0 if wrap else MIN_NAME_WIDTH
        cells = [min(max(cells), max(widest, lower_bound))]
    return max(heading, *cells)
