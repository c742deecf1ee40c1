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

WORDS: Final = 60  # of a caption
SHORT: Final = {"name": 30, "verdict": 14}  # letters of a cell without a note
QUALIFIED: Final = re.compile(r"(?P<head>[^(,]+?)(?: (?=\()|, )(?P<rest>.+)")


def latex(grid: Grid, label: str) -> str:
    r"""Return a `table` for one column of a page, or a `table*`, and one for each further grid; needs booktabs only."""
    further = [latex(extra, f"{label}-{extra.title.partition(COUNT)[0]}") for extra in grid.extra]
    return "\n".join([*_lines(grid, label), "", *further])


def _lines(grid: Grid, label: str) -> Iterator[str]:
    notes = Notes()
    grid = _short_cells(grid, notes)
    groups, grid = _without_setting(grid)
    caption, rest = _caption(grid)
    layout = fit(grid, narrow=not grid.full_page)
    environment = "table*" if layout.full_page else "table"
    yield "% needs \\usepackage{booktabs}"
    yield from _comments([*grid.header, *rest])
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
        cells = (layout.cell(place, cell) for place, cell in enumerate(row))
        yield f"    {' & '.join(cells)} {layout.row_end}"
    yield r"    \bottomrule"
    yield r"  \end{tabular}"
    warnings = [(f"\\textbf{{!}} {breakable(line)}") for mark, lines in grid.remarks if mark == "!" for line in lines]
    plain = [breakable(line) for mark, lines in grid.remarks if mark == "-" for line in lines]
    if below := [*filter(None, [r" \quad ".join(notes.lines())]), *warnings, *plain]:
        yield r"  \par\medskip\begin{minipage}{\linewidth}\raggedright"
        yield from (f"    {line}\\par" for line in below)
        yield r"  \end{minipage}"
    yield rf"\end{{{environment}}}"


@final
class Notes:
    """Notes under a table, by the letter that refers to each."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def mark(self, text: str) -> str:
        """Return the letter of a note; equal notes share it."""
        if text not in self._texts:
            self._texts.append(text)
        index = self._texts.index(text)
        return ascii_lowercase[index % 26] * (index // 26 + 1)

    def lines(self) -> Iterator[str]:
        for text in self._texts:
            yield rf"\textsuperscript{{{self.mark(text)}}}\,{breakable(text)}"


def _short_cells(grid: Grid, notes: Notes) -> Grid:
    """Return a grid whose verdicts and baselines are short; what they leave out is in the notes."""
    rows = [
        [
            _short(cell, column.wrap, notes) if column.wrap else cell
            for column, cell in zip(grid.columns, row, strict=True)
        ]
        for row in grid.rows
    ]
    return replace(grid, rows=rows)


def _short(cell: Cell, wrap: str, notes: Notes) -> Cell:
    """`inconclusive (needs n ≥ 12)` is `inconclusive` with a note, as is the name of a baseline with many values."""
    match = QUALIFIED.fullmatch(cell.text) if wrap else None
    if match is None or len(cell.text) <= SHORT[wrap] or (wrap == "name" and cell.kind != "baseline"):
        return cell
    rest = match["rest"]
    if rest.startswith("(") and rest.find(")") == len(rest) - 1:
        rest = rest[1:-1]
    return Cell(match["head"], cell.kind, notes.mark(rest))


def _without_setting(grid: Grid) -> tuple[dict[int, str], Grid]:
    """Return the setting that begins at each row, and the grid without a column for it."""
    if grid.columns[0].id != SETTING or len(grid.columns) == 1:
        return {}, grid
    names = [row[0].text for row in grid.rows]
    groups = {index: name for index, name in enumerate(names) if index == 0 or names[index - 1] != name}
    return groups, replace(grid, columns=grid.columns[1:], rows=[row[1:] for row in grid.rows])


def _group(groups: Mapping[int, str], index: int, layout: Layout) -> Iterator[str]:
    """Yield the line with the name of the setting that begins here."""
    if index in groups:
        yield from (r"    \addlinespace",) if index else ()
        text = rf"\raggedright\emph{{{breakable(groups[index])}}}"
        yield rf"    \multicolumn{{{len(layout.alignments)}}}{{@{{}}p{{{layout.width:.0f}pt}}@{{}}}}{{{text}}} \\"


def _caption(grid: Grid) -> tuple[str, list[str]]:
    """Return a caption of at most `WORDS` words, and the lines that it does not have."""
    lines = [line for mark, remarks in grid.remarks if mark == "·" for line in remarks]
    if grid.caption:
        return grid.caption, lines
    sentences = [grid.title + "."]
    while lines and sum(len(text.split()) for text in (*sentences, lines[0])) < WORDS:
        sentences.append(lines.pop(0))
    return " ".join(sentences), lines


def _comments(lines: Sequence[str]) -> Iterator[str]:
    """Yield what neither the caption nor the notes have, for the text of a paper."""
    yield from ("% For the text or the appendix:",) if lines else ()
    for line in lines:
        yield from textwrap.wrap(
            escaped(line), 110, initial_indent="% - ", subsequent_indent="%   ", break_on_hyphens=False
        )
