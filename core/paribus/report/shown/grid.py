"""A table of text, whatever it is of: for a terminal, as Markdown, and as LaTeX; its numbers as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from paribus.report.shown import cells
from paribus.report.shown.markdown import escaped

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

STYLES: Final[Mapping[str, str]] = {"!": "bold yellow", "-": "", "·": "dim"}
PLAIN: Final = str.maketrans({"×": "x", "≥": ">=", "±": "+-", "µ": "u", "·": "-", "…": "...", "→": "->"})  # noqa: RUF001  # times, and no letter
NAMES: Final = 24  # places below which a name is not folded
STACKED: Final = 64  # columns under which rows are shown one below the other


@final
class Head(NamedTuple):
    """A column: its name, and whether it holds numbers."""

    name: str
    right: bool = False
    folds: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Grid:
    """What a table shows, in words that are clean already."""

    title: str
    heads: Sequence[Head]
    rows: Sequence[Sequence[str]]
    styles: Sequence[str]  # of each row's last cell
    before: Sequence[str] = ()  # what is said first
    remarks: Sequence[tuple[str, Sequence[str]]] = ()  # what is said below, by how it is marked
    records: Sequence[Mapping[str, Any]] = ()  # the same rows as plain numbers
    further: Sequence[Grid] = ()  # which a paper has as tables of their own

    def show(self, console: Console | None = None) -> None:
        """Prints it as wide as there is room."""
        from rich.console import Console

        console = console or Console()
        with console.capture() as captured:
            for part in self._parts(console):
                console.print(part, markup=False, emoji=False, highlight=False)
        lines = captured.get().split("\n")
        console.file.write("\n".join(line if console.is_terminal else line.rstrip() for line in lines))

    def rendered(self, width: int) -> str:
        from io import StringIO

        from rich.console import Console

        file = StringIO()
        self.show(Console(file=file, width=width, color_system=None, force_terminal=False))
        return file.getvalue()

    def markdown(self) -> str:
        lines = [f"## {escaped(self.title)}", "", *(f"- {escaped(line)}" for line in self.before)]
        lines += ["", _bars([head.name for head in self.heads])]
        lines += [_bars(["--:" if head.right else ":--" for head in self.heads])]
        lines += [_bars([escaped(cell) for cell in row]) for row in self.rows]
        for mark, said in self.remarks:
            lines += [""] if said else []
            lines += [f"- **{mark}** {escaped(line)}" if mark == "!" else f"- {escaped(line)}" for line in said]
        return "\n".join([*lines, ""])

    def _parts(self, console: Console) -> Iterator[RenderableType]:
        from rich.text import Text

        def plain(text: str) -> str:
            if not console.options.ascii_only:
                return text
            return text.translate(PLAIN).encode("ascii", "backslashreplace").decode()

        yield Text(plain(self.title), style="bold")
        yield from (Text(plain(line), style="dim", overflow="fold") for line in self.before)
        yield ""
        yield self._table(plain) if console.width >= STACKED else Text(plain("\n".join(self._stacked())))
        for mark, lines in self.remarks:
            if lines:
                yield ""
                yield _list([(plain(mark), STYLES[mark], plain(line)) for line in lines])

    def _table(self, plain: Any) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for head, cells_of in zip(self.heads, zip(*self.rows, strict=True), strict=True):
            justify: Any = "right" if head.right else "left"
            least = min(NAMES, max(map(len, cells_of))) if head is self.heads[0] else None
            name = Text(plain(head.name))
            table.add_column(name, justify=justify, no_wrap=not head.folds, overflow="fold", min_width=least)
        for row, style in zip(self.rows, self.styles, strict=True):
            *first, last = (plain(cell) for cell in row)
            table.add_row(*(Text(cell) for cell in first), Text(last, style=style))
        return table

    def _stacked(self) -> Iterator[str]:
        for row in self.rows:
            first, *rest = row
            yield first
            told = zip(self.heads[1:], rest, strict=True)
            yield from (f"  {head.name}: {cell}" for head, cell in told if cell not in ("", cells.NONE))


def _bars(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _list(lines: Sequence[tuple[str, str, str]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for mark, style, text in lines:
        grid.add_row(Text(mark, style=style), Text(text, style="dim" if mark in "·-" and style else ""))
    return grid
