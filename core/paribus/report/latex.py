"""LaTeX tables that fit into a column or a page of a paper, with booktabs, a short caption, and notes."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from string import ascii_lowercase
from typing import Final, final

from paribus.analysis.formatting import Cell, Grid
from paribus.report.latex_layout import COLUMN_WIDTH, GAP, PAGE_WIDTH, Layout, fit
from paribus.report.latex_text import breakable, escaped
from paribus.report.table_views import COUNT, SETTING

MAX_CAPTION_WORDS: Final = 60
MAX_CELL_LENGTH: Final = {"name": 30, "verdict": 14}  # a longer cell moves a part of its text to a note
QUALIFIED: Final = re.compile(r"(?P<head>[^(,]+?)(?: (?=\()|, )(?P<rest>.+)")


def latex(grid: Grid, label: str, width: float | None = None) -> str:
    r"""Return a `table` for one column of a page or a `table*`, and one for each extra grid; all need booktabs.

    `width` is that of the text in points, into which each table must fit. By default it is one column of a two-column
    page, or the page of a one-column `article`. A table that does not fit in 6 points is split into several, with some
    columns each.
    """
    parts = _parts(grid, width)
    labels = [label] if len(parts) == 1 else [f"{label}-{number}" for number in range(1, len(parts) + 1)]
    tables = [line for part, name in zip(parts, labels, strict=True) for line in (*_lines(part, name, width), "")]
    extra_tables = [latex(extra, f"{label}-{extra.title.partition(COUNT)[0]}", width) for extra in grid.extra]
    return "\n".join([*tables, *extra_tables])


def _parts(grid: Grid, width: float | None) -> list[Grid]:
    """Return the grid, or the fewest grids with some of its columns that fit; the names of the rows are in each."""
    names = 2 if grid.columns[0].id == SETTING else 1
    places = [*range(names, len(grid.columns))]
    for count in range(1, max(1, len(places)) + 1):
        size = math.ceil(len(places) / count)
        parts = [
            _part(grid, [*range(names), *places[at : at + size]]) for at in range(0, max(1, len(places)), size or 1)
        ]
        if all(_layout(part, width).fits for part in parts):
            break
    if len(parts) == 1:
        return [grid]
    numbered = [f"{{}} (part {number} of {len(parts)})" for number in range(1, len(parts) + 1)]
    return [
        replace(
            part,
            title=text.format(grid.title),
            caption=text.format(grid.caption.removesuffix(".")) + "." if grid.caption else "",
            header=() if at else grid.header,
            remarks=() if at else grid.remarks,
        )
        for at, (part, text) in enumerate(zip(parts, numbered, strict=True))
    ]


def _part(grid: Grid, places: Sequence[int]) -> Grid:
    columns = [grid.columns[place] for place in places]
    return replace(grid, columns=columns, rows=[[row[place] for place in places] for row in grid.rows], extra=())


def _layout(grid: Grid, width: float | None) -> Layout:
    """Return the layout of a grid as it is printed."""
    limits = (width,) if width is not None else (PAGE_WIDTH,) if grid.full_page else (COLUMN_WIDTH, PAGE_WIDTH)
    return fit(_without_setting(_short_cells(grid, Notes()))[1], limits)


def _lines(grid: Grid, label: str, width: float | None) -> Iterator[str]:
    layout, notes = _layout(grid, width), Notes()
    grid = _short_cells(grid, notes)
    groups, grid = _without_setting(grid)
    caption, other_lines = _caption(grid)
    environment = "table*" if width is None and layout.limit > COLUMN_WIDTH else "table"
    yield "% needs \\usepackage{booktabs}"
    if not layout.fits:
        yield f"% about {layout.width:.0f}pt wide: no layout of these columns fits into {layout.limit:.0f}pt"
    yield from _comments([*grid.header, *other_lines])
    yield rf"\begin{{{environment}}}[t]"
    yield r"  \centering\sloppy"
    yield rf"  \caption[{escaped(grid.title)}]{{{breakable(caption)}}}"
    yield rf"  \label{{tab:{re.sub(r'[^a-z0-9]+', '-', label.lower()).strip('-') or 'table'}}}"
    yield rf"  \fontsize{{{layout.size:g}}}{{{layout.size * 1.2:g}}}\selectfont\par\vspace{{4pt}}"
    yield rf"  \setlength{{\tabcolsep}}{{{GAP / 2:g}pt}}"
    yield rf"  \begin{{tabular}}{{@{{}}{''.join(layout.alignments)}@{{}}}}"
    yield r"    \toprule"
    yield f"    {' & '.join(layout.heading(index) for index in range(len(grid.columns)))} \\\\"
    yield r"    \midrule"
    for index, row in enumerate(grid.rows):
        yield from _group(groups, index, layout)
        cells = (layout.cell(column, cell) for column, cell in enumerate(row))
        yield f"    {' & '.join(cells)} {layout.row_end}"
    yield r"    \bottomrule"
    yield r"  \end{tabular}"
    warnings = [(f"\\textbf{{!}} {breakable(line)}") for mark, lines in grid.remarks if mark == "!" for line in lines]
    remarks = [breakable(line) for mark, lines in grid.remarks if mark == "-" for line in lines]
    if lines_below := [*filter(None, [r" \quad ".join(notes.lines())]), *warnings, *remarks]:
        yield r"  \par\medskip\begin{minipage}{\linewidth}\raggedright"
        yield from (f"    {line}\\par" for line in lines_below)
        yield r"  \end{minipage}"
    yield rf"\end{{{environment}}}"


@final
class Notes:
    """Notes under a table, by the letter that refers to each."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def mark(self, text: str) -> str:
        """Return the letter of a note; equal notes share a letter."""
        if text not in self._texts:
            self._texts.append(text)
        index = self._texts.index(text)
        return ascii_lowercase[index % 26] * (index // 26 + 1)

    def lines(self) -> Iterator[str]:
        for text in self._texts:
            yield rf"\textsuperscript{{{self.mark(text)}}}\,{breakable(text)}"


def _short_cells(grid: Grid, notes: Notes) -> Grid:
    """Return a grid with short verdicts and names of baselines; the rest of their text is added to the notes."""
    rows = [
        [
            _short_cell(cell, column.wrap, notes) if column.wrap else cell
            for column, cell in zip(grid.columns, row, strict=True)
        ]
        for row in grid.rows
    ]
    return replace(grid, rows=rows)


def _short_cell(cell: Cell, wrap: str, notes: Notes) -> Cell:
    """Return `inconclusive (needs n ≥ 12)` as `inconclusive` with a note; the long name of a baseline likewise."""
    match = QUALIFIED.fullmatch(cell.text) if wrap else None
    if match is None or len(cell.text) <= MAX_CELL_LENGTH[wrap] or (wrap == "name" and cell.kind != "baseline"):
        return cell
    rest = match["rest"]
    if rest.startswith("(") and rest.find(")") == len(rest) - 1:
        rest = rest[1:-1]
    return Cell(match["head"], cell.kind, notes.mark(rest))


def _without_setting(grid: Grid) -> tuple[dict[int, str], Grid]:
    """Map the index of the first row of each setting to its name; also return the grid without that column."""
    if grid.columns[0].id != SETTING or len(grid.columns) == 1:
        return {}, grid
    names = [row[0].text for row in grid.rows]
    groups = {index: name for index, name in enumerate(names) if index == 0 or names[index - 1] != name}
    return groups, replace(grid, columns=grid.columns[1:], rows=[row[1:] for row in grid.rows])


def _group(groups: Mapping[int, str], index: int, layout: Layout) -> Iterator[str]:
    """Yield a line with the name of the setting if one begins at this row."""
    if index in groups:
        yield from (r"    \addlinespace",) if index else ()
        text = rf"\raggedright\emph{{{breakable(groups[index])}}}"
        yield rf"    \multicolumn{{{len(layout.alignments)}}}{{@{{}}p{{{layout.width:.0f}pt}}@{{}}}}{{{text}}} \\"


def _caption(grid: Grid) -> tuple[str, list[str]]:
    """Return a caption of at most `MAX_CAPTION_WORDS` words, and the lines that do not fit."""
    lines = [line for mark, remarks in grid.remarks if mark == "·" for line in remarks]
    if grid.caption:
        return grid.caption, lines
    sentences = [grid.title + "."]
    while lines and sum(len(text.split()) for text in (*sentences, lines[0])) < MAX_CAPTION_WORDS:
        sentences.append(lines.pop(0))
    return " ".join(sentences), lines


def _comments(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines that are in neither caption nor notes as comments, for the text of a paper."""
    yield from ("% For the text or the appendix:",) if lines else ()
    for line in lines:
        yield from textwrap.wrap(
            escaped(line), 110, initial_indent="% - ", subsequent_indent="%   ", break_on_hyphens=False
        )
