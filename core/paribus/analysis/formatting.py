"""Formatting of numbers and names as text, and grids of text cells that every output format is rendered from."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, final

from paribus.analysis.table import Row, Table
from paribus.errors import Problem, SpecError, closest_match, escape_unprintable, join_names

NO_VALUE: Final = "-"
TIMES: Final = "\N{MULTIPLICATION SIGN}"
MAX_DECIMALS: Final = 6  # a number that needs more is written with an exponent, as are numbers from MIN_EXPONENTIAL on
MIN_EXPONENTIAL: Final = 1e7
DEFAULT_DECIMALS: Final = 3  # for rows without intervals and differences
EXTRA_DECIMALS: Final = 2  # maximum of decimals that a table has beyond what its coarsest row needs
MAX_NAMES: Final = 8  # names in one line of text; a count stands for the rest
MAX_VALUES: Final = 12  # values of options in one line of text


def clean(text: str) -> str:
    """Return the text as one line without control characters, which could control a terminal."""
    return escape_unprintable(text).replace("\n", "\\n")


def span(numbers: Sequence[Any]) -> str:
    """`5`, or `3 to 5`."""
    if not numbers:
        return "0"
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def percent(share: float) -> str:
    """`95 %`, `98.75 %`."""
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + " %"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def last_text(last: int) -> str:
    """` (mean of the last 5 evaluations)`; empty for the last evaluation alone."""
    return f" (mean of the last {last} evaluations)" if last > 1 else ""


def decimals_of(size: float | None) -> int:
    """Return the number of decimals that shows two significant digits of `size`."""
    return 1 - math.floor(math.log10(abs(size))) if size else 1


def format_number(value: float | None, decimals: int, *, signed: bool = False) -> str:
    """`2.153`, `+0.031`, `-1.2e-08`."""
    if value is None:
        return NO_VALUE
    sign = "+" if signed else ""
    if decimals > MAX_DECIMALS or abs(value) >= MIN_EXPONENTIAL:
        return f"{value:{sign}.2e}" if signed else f"{value:.4g}"
    return f"{value:{sign},.{max(decimals, 0)}f}"


def compact(value: float, step: int, units: str) -> str:
    """`36.3k`, `434M`: three digits and a unit."""
    index = 0
    while abs(value) >= 0.9995 * step and index < len(units) - 1:
        value, index = value / step, index + 1
    return f"{value:.3g}{units[index]}".strip()


@final
class Column(NamedTuple):
    """A column: heading, alignment, kind of wrapping, and its key in `--columns`, CSV and JSON."""

    name: str
    align_right: bool = False
    wrap: Literal["", "name", "verdict"] = ""
    key: str = ""  # empty if it equals the heading

    @property
    def id(self) -> str:
        """The name that selects the column."""
        return self.key or self.name


@final
class Cell(NamedTuple):
    """The text of a cell, with the kind of its verdict, which sets its colour."""

    text: str
    kind: str = ""
    note: str = ""  # letter of its note in LaTeX


@final
@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table as text cells without control characters."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    narrow_rows: Sequence[Sequence[Cell]] = ()  # name and lines of each row, for a narrow terminal
    cost_columns: int = 0  # number of the last columns that may move to a separate table
    header: Sequence[str] = ()  # lines above the table
    remarks: Sequence[tuple[str, Sequence[str]]] = ()  # lines below the table, by their mark
    records: Sequence[Mapping[str, Any]] = ()  # the rows as unrounded numbers
    extra: Sequence[Grid] = ()  # separate tables in LaTeX
    caption: str = ""  # short caption for a paper; if empty, the title and the first remarks
    full_page: bool = False  # LaTeX may use both columns of a page

    @property
    def stacked(self) -> Sequence[Sequence[Cell]]:
        """Each row as a name with lines below it."""
        names = [column.name for column in self.columns[1:]]
        return self.narrow_rows or [
            [
                name,
                *(Cell(f"{label}: {text}", kind) for label, (text, kind, _) in zip(names, cells, strict=True) if text),
            ]
            for name, *cells in self.rows
        ]

    def split_costs(self) -> tuple[Grid, Grid | None]:
        """Return the table without its costs, and a table of the costs where it has any."""
        if not self.cost_columns:
            return self, None
        index = len(self.columns) - self.cost_columns
        costs = [[row[0], *row[index:]] for row in self.rows]
        return (
            replace(self, columns=self.columns[:index], rows=[row[:index] for row in self.rows], cost_columns=0),
            replace(self, columns=[self.columns[0], *self.columns[index:]], rows=costs, cost_columns=0),
        )

    def select(self, names: Sequence[str] | None, *, ignore_unknown: bool = False) -> Grid:
        """Return the table with these columns, in this order, by key or heading; None stands for all.

        With `ignore_unknown`, unknown columns are ignored and the names of rows stay, as in the tables of families.
        """
        if names is None:
            return self
        index_of = {name: index for index, column in enumerate(self.columns) for name in (column.name, column.id)}
        if not ignore_unknown:
            refuse_unknown_columns(names, [column.id for column in self.columns], index_of)
        indices = [index for index, column in enumerate(self.columns) if ignore_unknown and column.wrap == "name"]
        indices = list(dict.fromkeys([*indices, *(index_of[name] for name in names if name in index_of)]))
        return self.pick(indices)

    def pick(self, indices: Sequence[int]) -> Grid:
        """Return the table with the columns of these indices, in this order."""
        return replace(
            self,
            columns=[self.columns[index] for index in indices],
            rows=[[row[index] for index in indices] for row in self.rows],
            narrow_rows=(),
            cost_columns=0,
        )

    def with_column(self, column: Column, cells: Sequence[Cell]) -> Grid:
        """Return the table with one more column before the verdict."""
        index = len(self.columns) - self.cost_columns - 1
        rows = [[*row[:index], cell, *row[index:]] for row, cell in zip(self.rows, cells, strict=True)]
        return replace(self, columns=[*self.columns[:index], column, *self.columns[index:]], rows=rows)


def refuse_unknown_columns(names: Sequence[str], valid: Sequence[str], headings: Collection[str] = ()) -> None:
    """Raise one error for all names that are in neither `valid` nor `headings`, or if `names` is empty."""
    messages = {f'unknown column "{name}"': name for name in names if name not in valid and name not in headings}
    problems = [
        Problem(
            code="unknown-column",
            path="columns",
            message=message,
            suggestion=closest_match(name, [*valid, *headings]),
            valid=join_names(valid, limit=40),
        )
        for message, name in (messages if names else {"no column is chosen": ""}).items()
    ]
    if problems:
        raise SpecError(*problems)


def row_cells(texts: Sequence[str], kind: str = "") -> list[Cell]:
    """Return the cells of a row whose last cell is its verdict."""
    *plain, verdict = texts
    return [*map(Cell, plain), Cell(verdict, kind)]


def table_decimals(table: Table) -> dict[str, int]:
    """Return the number of decimals for each row of a table, by variant."""
    return row_decimals((table.baseline, *table.rows), decimals_of(table.baseline.mean) + 2)


def row_decimals(rows: Sequence[Row], default: int = DEFAULT_DECIMALS) -> dict[str, int]:
    """Return the decimals by variant that show two digits of half an interval, the same for all rows if possible.

    A row that needs more than `EXTRA_DECIMALS` beyond the coarsest row gets them alone.
    """
    needed = {row.variant: decimals_of(size) for row in rows if (size := _half_width(row))}
    shared = min(max(needed.values()), min(needed.values()) + EXTRA_DECIMALS) if needed else default
    return {row.variant: max(shared, needed.get(row.variant, shared)) for row in rows}


def _half_width(row: Row) -> float:
    if row.low is not None and row.high is not None and row.high > row.low:
        return (row.high - row.low) / 2
    return abs(row.difference or 0.0)


def format_difference(row: Row, decimals: int) -> str:
    """`+0.031 [+0.012, +0.050]`, or `+0.031` without an interval."""
    if row.kind == "baseline":
        return ""
    difference = format_number(row.difference, decimals, signed=True)
    if row.low is None or row.high is None:
        return difference
    low, high = (format_number(bound, decimals, signed=True) for bound in (row.low, row.high))
    return f"{difference} [{low}, {high}]"


def format_bare_difference(row: Row, decimals: int) -> str:
    """`+0.031`: the difference without its interval, with up to two more decimals if it would be shown as 0."""
    if row.difference is None:
        return ""
    needed = min(decimals_of(row.difference), decimals + 2)
    return format_number(row.difference, max(decimals, needed), signed=True)


def format_count(row: Row) -> str:
    """`5`, or `4/5` where seeds are missing."""
    return str(row.n) if row.n == row.planned else f"{row.n}/{row.planned}"
