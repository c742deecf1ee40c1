"""Verdict tables in a terminal of any width from 40 columns, also without colours or Unicode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, final

from paribus.analysis.formatting import TIMES, Cell, Column, Grid, clean
from paribus.analysis.table import Columns, Table
from paribus.report import table_views
from paribus.report.plots import MIN_WIDTH, Forest

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


STYLES: Final[Mapping[str, str]] = {
    "better": "bold green",
    "worse": "bold red",
    "equivalent": "bold cyan",
    "identical": "cyan",
    "inconclusive": "yellow",
    "diverged": "bold magenta",
    "withheld": "bold magenta",
    "failed": "bold magenta",
    "baseline": "dim",
    "aside": "dim",
    "faster": "bold green",
    "slower": "bold red",
}


# Mark of a line -> styles of the mark and of the line.
MARK_STYLES: Final[Mapping[str, tuple[str, str]]] = {
    "!": ("bold yellow", ""),
    "-": ("", ""),
    "·": ("dim", "dim"),
    "✓": ("green", ""),
    "✗": ("bold magenta", ""),
}
ASCII_SUBSTITUTES: Final = str.maketrans(
    {TIMES: "x", "≥": ">=", "●": "o", "○": "o", "━": "=", "│": "|", "┿": "+", "┊": ":", "◂": "<", "▸": ">"}
    | {
        "✓": "+",
        "✗": "x",
        "·": "-",
        "…": "...",
        "→": "->",
        "±": "+-",
        "µ": "u",
        "²": "^2",
        "³": "^3",
        "∞": "inf",
        "≈": "~",
    }
)
# All widths are in characters.
MAX_PLOT_WIDTH: Final = 41
NAME_WIDTHS: Final = range(30, 13, -1)  # widths to which names may be folded, the best first
VERDICT_WIDTHS: Final = (30, 20)  # widths to which verdicts may be folded, the best first
GAP: Final = 2  # between two columns

PlotColumn = Callable[[int], tuple[Column, Sequence[Cell]]]  # maximum width -> a column with the plot of each row
Folds = Mapping[str, int]  # kind of wrapping (`Column.wrap`) -> width


@final
class Pen:
    """The width and character set of a console."""

    def __init__(self, console: Console) -> None:
        self.width = console.width
        self.ascii_only = console.options.ascii_only

    def plain(self, text: str) -> str:
        """Return text in the characters that the console has."""
        return (
            text.translate(ASCII_SUBSTITUTES).encode("ascii", "backslashreplace").decode() if self.ascii_only else text
        )

    def title(self, text: str) -> RenderableType:
        from rich.text import Text

        return Text(self.plain(text), style="bold")

    def grid(self, grid: Grid, plot: PlotColumn | None = None) -> Iterator[RenderableType]:
        """Yield the first arrangement that fits: one table, costs in separate tables, no plot, or a list.

        `plot` returns a column of plots, which is put before the verdict.
        """
        main, costs = grid.split_costs()
        free = self._free_width(grid, {})
        if free >= (MIN_WIDTH if plot else -GAP):
            yield self._table(grid.with_column(*plot(min(free, MAX_PLOT_WIDTH))) if plot else grid, {})
            return
        # (whether the plot is shown, width of the verdict), the best arrangement first.
        arrangements = [(True, VERDICT_WIDTHS[0])] if plot else []
        arrangements += [(False, verdict_width) for verdict_width in VERDICT_WIDTHS]
        for has_plot, verdict_width in arrangements:
            for name_width in NAME_WIDTHS:
                folds = {"name": name_width, "verdict": verdict_width}
                free = self._free_width(main, folds)
                cost_tables = self._cost_tables(costs, folds)
                if free < (MIN_WIDTH if has_plot else -GAP) or cost_tables is None:
                    continue
                plotted = main.with_column(*plot(min(free, MAX_PLOT_WIDTH))) if plot and has_plot else main
                # The folded verdict may be narrower than its limit, and the remaining width is free.
                needed = self._needed_width(main, len(main.columns) - 1, folds)
                rest = max(free - MAX_PLOT_WIDTH, 0) if has_plot else free + GAP
                yield self._table(plotted, {**folds, "verdict": needed + rest})
                for cost_table in cost_tables:
                    yield from ("", self._table(cost_table, folds))
                return
        yield from self._stacked(grid)

    def _cost_tables(self, costs: Grid | None, folds: Folds) -> list[Grid] | None:
        """Return the costs in as few tables as the width allows; None if a single column does not fit."""
        tables: list[Grid] = []
        indices: list[int] = []
        for index in range(1, len(costs.columns) if costs is not None else 0):
            assert costs is not None, "the loop has an index only with columns"
            if indices and self._free_width(costs.pick([0, *indices, index]), folds) >= -GAP:
                indices.append(index)
                continue
            if self._free_width(costs.pick([0, index]), folds) < -GAP:
                return None
            tables += [costs.pick([0, *indices])] if indices else []
            indices = [index]
        return [*tables, costs.pick([0, *indices])] if costs is not None and indices else tables

    def marked(self, lines: Sequence[tuple[str, str]]) -> RenderableType:
        """Return lines with their marks, folded beside them."""
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for mark, text in lines:
            mark_style, style = MARK_STYLES[mark]
            table.add_row(Text(self.plain(mark), style=mark_style), Text(self.plain(text), style=style))
        return table

    def remarks(self, remarks: Sequence[tuple[str, Sequence[str]]]) -> Iterator[RenderableType]:
        """Yield the remarks under a table."""
        for mark, lines in remarks:
            yield from ("", self.marked([(mark, line) for line in lines])) if lines else ()

    def _text(self, grid: Grid, cell: Cell, column: int, folds: Folds) -> str:
        text, wrap = self.plain(cell.text), grid.columns[column].wrap
        return table_views.fold_text(text, folds[wrap]) if wrap in folds else text

    def _free_width(self, grid: Grid, folds: Folds) -> int:
        """Return the width that remains for another column beside these; -GAP if they just fit."""
        return self.width - sum(GAP + self._needed_width(grid, column, folds) for column in range(len(grid.columns)))

    def _needed_width(self, grid: Grid, column: int, folds: Folds) -> int:
        """Return the width that a column needs."""
        from rich.cells import cell_len

        texts = [
            self.plain(grid.columns[column].name),
            *(self._text(grid, row[column], column, folds) for row in grid.rows),
        ]
        return max(cell_len(line) for text in texts for line in text.split("\n"))

    def _table(self, grid: Grid, folds: Folds) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        for head in grid.columns:
            table.add_column(Text(self.plain(head.name)), justify="right" if head.align_right else "left", no_wrap=True)
        for row in grid.rows:
            texts = (self._text(grid, cell, column, folds) for column, cell in enumerate(row))
            table.add_row(*(Text(text, STYLES.get(cell.kind, "")) for text, cell in zip(texts, row, strict=True)))
        return table

    def _stacked(self, grid: Grid) -> Iterator[RenderableType]:
        """Yield a few lines for each row, for a narrow terminal."""
        from rich.padding import Padding
        from rich.text import Text

        for name, *cells in grid.stacked:
            yield Text(self.plain(name.text), style="bold")
            for text, kind, _ in cells:
                line = Text(self.plain(text), style=STYLES.get(kind, ""), overflow="fold")
                yield Padding(line, (0, 0, 0, 2))


Parts = Callable[[Pen], Iterator["RenderableType"]]


def _grid_parts(grid: Grid, pen: Pen) -> Iterator[RenderableType]:
    """Yield a grid with its header lines and remarks."""
    from rich.text import Text

    yield pen.title(grid.title)
    yield from (Text(pen.plain(line), style="dim", overflow="fold") for line in grid.header)
    yield ""
    yield from pen.grid(grid)
    yield from pen.remarks(grid.remarks)


def show_grid(grid: Grid, console: Console | None = None) -> None:
    """Print a grid as wide as its columns need and the console allows."""
    print_parts(partial(_grid_parts, grid), console)


def grid_text(grid: Grid, width: int) -> str:
    """Return a grid as text of at most `width` columns."""
    return parts_as_text(partial(_grid_parts, grid), width)


def print_parts(parts: Parts, console: Console | None = None) -> None:
    """Print renderables to a console, with its width, colours and characters."""
    from rich.console import Console

    console = console or Console()
    with console.capture() as captured:
        for part in parts(Pen(console)):
            console.print(part, markup=False, emoji=False, highlight=False)
    lines = captured.get().split("\n")
    console.file.write("\n".join(line if console.is_terminal else line.rstrip() for line in lines))


def parts_as_text(parts: Parts, width: int, *, color: bool = False) -> str:
    """Return renderables as text of `width` columns."""
    from io import StringIO

    from rich.console import Console

    file = StringIO()
    print_parts(
        parts, Console(file=file, width=width, color_system="standard" if color else None, force_terminal=color)
    )
    return file.getvalue()


def show_table(
    table: Table,
    console: Console | None = None,
    columns: Columns = None,
    *,
    with_notes: bool = False,
    source: str = table_views.SOURCE,
) -> None:
    """Print a table, with these columns or all and a plot, and with its captions or that `source` has them."""
    shown = table if with_notes else table_views.without_captions(table, source)
    print_parts(partial(_parts, shown, columns=columns), console)


def table_text(table: Table, width: int, *, color: bool = False) -> str:
    """Return a table as text of `width` columns."""
    return parts_as_text(partial(_parts, table), width, color=color)


def _parts(table: Table, pen: Pen, columns: Columns = None) -> Iterator[RenderableType]:
    """Yield a table, or all settings of a study: an overview, sections, and each in full."""
    yield pen.title(table_views.table_title(table))
    yield ""
    if table.other_settings:
        yield from pen.grid(table_views.overview_grid(table))
    for section in table.sections:
        yield from ("", pen.title(clean(section.title)), "")
        yield pen.marked([("-", clean(line)) for line in section.lines])
    if not table.other_settings:
        yield from ("",) if table.sections else ()
        yield from _body(table, pen, columns)
        return
    common, tables = table_views.split_notes(table)
    for setting in tables:
        yield from ("", pen.title(clean(setting.setting)), "")
        yield from _body(setting, pen, columns)
    yield from pen.remarks(table_views.table_remarks(common))


def _body(table: Table, pen: Pen, columns: Columns) -> Iterator[RenderableType]:
    """Yield verdicts and costs, certificates, other families, and remarks."""
    yield from pen.grid(
        table_views.chosen_grid(table, columns), partial(_plot_column, table) if columns is None else None
    )
    if columns is None and table_views.has_inference(table):
        yield ""
        yield from pen.grid(table_views.inference_grid(table))
    yield ""
    if certificates := table_views.certificate_lines(table.certificates):
        yield pen.marked([(mark, f"{name}: {text}") for mark, name, text in certificates])
    for family in table.families:
        yield from ("", pen.title(clean(family.title)))
        yield from pen.grid(table_views.family_grid(family).select(columns, ignore_unknown=True))
        lines = [(mark, f"{name}: {text}") for mark, name, text in table_views.family_certificate_lines(family)]
        yield pen.marked([*lines, *(("·", clean(line)) for line in family.caption)])
    yield from pen.remarks(table_views.table_remarks(table))


def _plot_column(table: Table, width: int) -> tuple[Column, Sequence[Cell]]:
    """Return a column with a plot of the interval of each row."""
    forest = Forest(table, width)
    sides = ("better", "worse") if table.better == "lower" else ("worse", "better")
    header = sides[0] + sides[1].rjust(forest.width - len(sides[0]))
    return Column(header), [Cell(forest.line(row), row.kind) for row in (table.baseline, *table.rows)]
