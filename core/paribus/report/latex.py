"""LaTeX tables that fit into a column or a page of a paper, with booktabs, a short caption, and notes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from string import ascii_lowercase
from typing import Final, final

from paribus.analysis.formatting import Cell, Grid
from paribus.report.latex_layout import GAP, Layout, fit
from paribus.report.latex_text import breakable, escaped
from paribus.report.table_views import COUNT, SETTING

MAX_CAPTION_WORDS: Final = 60
MAX_CELL_LENGTH: Final = {"name": 30, "verdict": 14}  # a longer cell moves a part of its text to a note
QUALIFIED: Final = re.compile(r"(?P<head>[^(,]+?)(?: (?=\()|, )(?P<rest>.+)")


def latex(grid: Grid, label: str) -> str:
    r"""Return a `table` for one column of a page or a `table*`, and one for each extra grid; all need booktabs."""
    extra_tables = [latex(extra, f"{label}-{extra.title.partition(COUNT)[0]}") for extra in grid.extra]
    return "\n".join([*_lines(grid, label), "", *extra_tables])


def _lines(grid: Grid, label: str) -> Iterator[str]:
    notes = Notes()
    grid = _short_cells(grid, notes)
    groups, grid = _without_setting(grid)
    caption, other_lines = _caption(grid)
    layout = fit(grid, narrow=not grid.full_page)
    environment = "table*" if layout.full_page else "table"
    yield "% needs \\usepackage{booktabs}"
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
