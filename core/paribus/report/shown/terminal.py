"""A table in a terminal: as wide as there is room, and readable in 40 columns, without colour, without a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, final

from paribus.report.shown import cells, several
from paribus.report.shown.besides_shown import besides_of
from paribus.report.shown.forest import LEAST, Forest
from paribus.report.shown.several_shown import glance_of
from paribus.report.shown.shades import STYLES
from paribus.report.tables.row import Row
from paribus.report.tables.table import Table
from paribus.report.words import clean

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

MARKS: Final[Mapping[str, str]] = {"!": "bold yellow", "-": "", "·": "dim"}
PLAIN: Final = str.maketrans(
    {cells.TIMES: "x", "≥": ">=", "●": "o", "○": "o", "━": "=", "│": "|", "┿": "+", "┊": ":", "◂": "<", "▸": ">"}
    | {"✓": "+", "✗": "x", "·": "-", "…": "...", "→": "->"}
)
WIDEST: Final = 41  # places of the picture
NAMES: Final = range(30, 13, -1)  # places that names may be folded to, the best first
VERDICTS: Final = (30, 20)  # the same of verdicts
GAP: Final = 2


@final
class Column(NamedTuple):
    """One column: how a row fills it, and how."""

    header: str
    cell: Callable[[Row], str]
    right: bool = True
    folds: str = ""  # what may be folded: a name, a verdict
    style: Callable[[Row], str] = lambda row: "dim" if row.kind == "baseline" else ""


def show(table: Table, console: Console | None = None) -> None:
    """Prints a table; the console knows its width, its colours and its letters."""
    from rich.console import Console

    console = console or Console()
    with console.capture() as captured:
        for part in _parts(table, console):
            console.print(part, markup=False, emoji=False, highlight=False)
    lines = captured.get().split("\n")
    console.file.write("\n".join(line if console.is_terminal else line.rstrip() for line in lines))


def rendered(table: Table, width: int, *, color: bool = False) -> str:
    """The same as text, in so many columns."""
    from io import StringIO

    from rich.console import Console

    file = StringIO()
    console = Console(file=file, width=width, color_system="standard" if color else None, force_terminal=color)
    show(table, console)
    return file.getvalue()


def _parts(table: Table, console: Console) -> Iterator[RenderableType]:
    """A table; or, of a study in several settings, all of them at a glance, what is said of them, and each in full."""
    from rich.text import Text

    page = _Page(table, console)
    yield Text(page.plain(cells.title(table)), style="bold")
    yield ""
    if table.further:
        yield from glance_of(table, console.width, page.plain, STYLES)
    for section in table.sections:
        yield from ("", Text(page.plain(clean(section.title)), style="bold"), "")
        yield page.list([("-", "", clean(line), "") for line in section.lines])
    if not table.further:
        yield from ("",) if table.sections else ()
        yield from page.body()
        return
    common, own = several.parted(table)
    for each in own:
        yield from ("", Text(page.plain(clean(each.setting)), style="bold"), "")
        yield from _Page(each, console).body()
    yield from _Page(common, console).remarks()


@final
class _Page:
    """One table on one console."""

    def __init__(self, table: Table, console: Console) -> None:
        self.table = table
        self.rows = (table.baseline, *table.rows)
        self.width = console.width
        self.ascii_only = console.options.ascii_only
        self.digits = cells.digits(table)

    def body(self) -> Iterator[RenderableType]:
        """Verdicts and costs, certificates, and what else has to be said."""
        yield from self._grids()
        yield ""
        yield from self._certificates()
        for family in self.table.besides:
            yield from besides_of(family, self.width, self.plain)
        yield from self.remarks()

    def remarks(self) -> Iterator[RenderableType]:
        """What is said under a table."""
        for mark, lines in cells.remarks(self.table):
            if lines:
                yield ""
                yield self.list([(mark, MARKS[mark], line, "dim" if mark == "·" else "") for line in lines])

    def plain(self, text: str) -> str:
        """The letters that the console has."""
        return text.translate(PLAIN).encode("ascii", "backslashreplace").decode() if self.ascii_only else text

    def _grids(self) -> Iterator[RenderableType]:
        """The first arrangement that there is room for: one table, two, two without a picture, or a list."""
        verdicts, costs = self._verdicts(), self._costs()
        left = self._left([*verdicts, *costs], {})
        if left >= LEAST:
            yield self._grid([*self._pictured(verdicts, left), *costs], {})
            return
        costs = [self._variant, *costs]
        for room, verdict in ((LEAST, VERDICTS[0]), *((-GAP, verdict) for verdict in VERDICTS)):
            for name in NAMES:
                folds = {"name": name, "verdict": verdict}
                left = self._left(verdicts, folds)
                if left >= room and self._left(costs, folds) >= -GAP:
                    told = self._needed(verdicts[-1], folds)  # which may be less than it may have
                    wider = {**folds, "verdict": told + (max(left - WIDEST, 0) if room > 0 else left + GAP)}
                    yield self._grid(self._pictured(verdicts, left) if room > 0 else verdicts, wider)
                    yield ""
                    yield self._grid(costs, folds)
                    return
        yield from self._stacked()

    @property
    def _variant(self) -> Column:
        return Column("variant", lambda row: clean(row.variant), right=False, folds="name")

    def _verdicts(self) -> list[Column]:
        metric = clean(self.table.metric.rpartition("/")[2])
        return [
            self._variant,
            Column("n", cells.count),
            Column(metric, lambda row: cells.number(row.mean, self.digits[row.variant])),
            Column("difference", lambda row: cells.difference(row, self.digits[row.variant]), right=False),
            Column("verdict", cells.verdict, right=False, folds="verdict", style=lambda row: STYLES[row.kind]),
        ]

    def _costs(self) -> list[Column]:
        return [Column(cells.COSTS[name], partial(cells.cost, name=name)) for name in cells.costs(self.table)]

    def _pictured(self, columns: Sequence[Column], width: int) -> list[Column]:
        """With a picture of the intervals before the verdict."""
        forest = Forest(self.table, min(width, WIDEST))
        sides = ("better", "worse") if self.table.better == "lower" else ("worse", "better")
        header = sides[0] + sides[1].rjust(forest.width - len(sides[0]))
        picture = Column(header, forest.line, right=False, style=lambda row: STYLES[row.kind])
        return [*columns[:-1], picture, columns[-1]]

    def _cell(self, column: Column, row: Row, folds: Mapping[str, int]) -> str:
        text = self.plain(column.cell(row))
        return cells.folded(text, folds[column.folds]) if column.folds in folds else text

    def _left(self, columns: Sequence[Column], folds: Mapping[str, int]) -> int:
        """How many places are left beside these columns for another one; -2 where they just fit."""
        return self.width - sum(GAP + self._needed(column, folds) for column in columns)

    def _needed(self, column: Column, folds: Mapping[str, int]) -> int:
        """How many places a column takes."""
        from rich.cells import cell_len

        texts = [column.header, *(self._cell(column, row, folds) for row in self.rows)]
        return max(cell_len(line) for text in texts for line in text.split("\n"))

    def _grid(self, columns: Sequence[Column], folds: Mapping[str, int]) -> RenderableType:
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        for column in columns:
            header = Text(self.plain(column.header))
            grid.add_column(header, justify="right" if column.right else "left", no_wrap=True)
        for row in self.rows:
            grid.add_row(*(Text(self._cell(column, row, folds), style=column.style(row)) for column in columns))
        return grid

    def _stacked(self) -> Iterator[RenderableType]:
        """For a narrow terminal: a few lines a variant."""
        from rich.padding import Padding
        from rich.text import Text

        for row in self.rows:
            digits = self.digits[row.variant]
            yield Text(self.plain(clean(row.variant)), style="bold")
            said = [(cells.verdict(row), STYLES[row.kind])]
            if row.difference is not None:
                said.append((cells.difference(row, digits), ""))
            said.append((f"{clean(self.table.metric)} {cells.number(row.mean, digits)}, n {cells.count(row)}", ""))
            said.append(
                (", ".join(f"{cells.COSTS[name]} {cells.cost(row, name)}" for name in cells.costs(self.table)), "dim")
            )
            for text, style in said:
                yield Padding(Text(self.plain(text), style=style, overflow="fold"), (0, 0, 0, 2))

    def _certificates(self) -> Iterator[RenderableType]:
        found = self.table.certificates.items()
        if found:
            yield self.list(
                [
                    (
                        "✓" if each.ok else "✗",
                        "green" if each.ok else "bold magenta",
                        clean(f"{name}: {each.text}"),
                        "",
                    )
                    for name, each in found
                ]
            )

    def list(self, lines: Sequence[tuple[str, str, str, str]]) -> RenderableType:
        """Lines with a mark before them, folded beside it."""
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid.grid(padding=(0, 1, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for mark, mark_style, text, style in lines:
            grid.add_row(Text(self.plain(mark), style=mark_style), Text(self.plain(text), style=style))
        return grid
