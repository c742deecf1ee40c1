"""A table as lines of cells, whatever it is of: every way of showing one begins from this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

if TYPE_CHECKING:
    from rich.console import Console


@final
class Head(NamedTuple):
    """A column: its name, whether it holds numbers, and what may be folded in it."""

    name: str
    right: bool = False
    folds: Literal["", "name", "verdict"] = ""


@final
class Cell(NamedTuple):
    """A text, and of what kind the verdict is that it shows: that colours it."""

    text: str
    kind: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Grid:
    """What a table shows, in words that are clean already."""

    title: str
    heads: Sequence[Head]
    rows: Sequence[Sequence[Cell]]
    narrow: Sequence[Sequence[Cell]] = ()  # of each row its name and lines, where columns have no room; else its cells
    costs: int = 0  # how many of the last columns may stand in a table of their own, beside the first
    before: Sequence[str] = ()  # what is said first
    remarks: Sequence[tuple[str, Sequence[str]]] = ()  # what is said below, by how it is marked
    records: Sequence[Mapping[str, Any]] = ()  # the same rows as plain numbers
    further: Sequence[Grid] = ()  # which a paper has as tables of their own

    @property
    def told(self) -> Sequence[Sequence[Cell]]:
        """Each row as a name with lines below it."""
        names = [head.name for head in self.heads[1:]]
        return self.narrow or [
            [first, *(Cell(f"{name}: {text}", kind) for name, (text, kind) in zip(names, rest, strict=True) if text)]
            for first, *rest in self.rows
        ]

    def parted(self) -> tuple[Grid, Grid | None]:
        """Without its costs; and these by themselves, where there are any."""
        if not self.costs:
            return self, None
        at = len(self.heads) - self.costs
        costs = [[row[0], *row[at:]] for row in self.rows]
        return (
            replace(self, heads=self.heads[:at], rows=[row[:at] for row in self.rows], costs=0),
            replace(self, heads=[self.heads[0], *self.heads[at:]], rows=costs, costs=0),
        )

    def pictured(self, head: Head, cells: Sequence[Cell]) -> Grid:
        """With one more column, before the verdict."""
        at = len(self.heads) - self.costs - 1
        rows = [[*row[:at], cell, *row[at:]] for row, cell in zip(self.rows, cells, strict=True)]
        return replace(self, heads=[*self.heads[:at], head, *self.heads[at:]], rows=rows)

    def show(self, console: Console | None = None) -> None:
        """Prints it as wide as there is room."""
        from paribus.report.terminal import compared, printed

        printed(lambda pen: compared(self, pen), console)

    def rendered(self, width: int) -> str:
        from paribus.report.terminal import as_text, compared

        return as_text(lambda pen: compared(self, pen), width)

    def markdown(self) -> str:
        from paribus.report.markdown import compared

        return compared(self)


def line(texts: Sequence[str], kind: str = "") -> list[Cell]:
    """The cells of a row that ends in its verdict."""
    *first, last = texts
    return [*map(Cell, first), Cell(last, kind)]
