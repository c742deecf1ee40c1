"""Markdown tables as GitHub renders them: for RESULTS.md, an issue or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from paribus.analysis.formatting import clean
from paribus.analysis.grid import Cell, Column, Grid
from paribus.analysis.table import Table
from paribus.report import cells, table_views

CLAIMED: Final = ("better", "worse", "equivalent", "faster", "slower")
SPECIAL: Final = re.compile(r"([\\`*_<>|#~\[\]])")


def markdown(table: Table, *, heading: int = 2) -> str:
    """Return the whole table with its certificates, warnings and captions, under a heading of this level."""
    return "\n".join([*_lines(table, heading), ""])


def grid_markdown(grid: Grid) -> str:
    """Return a grid with its header lines and remarks."""
    header = (f"- {escaped(line)}" for line in grid.header)
    return "\n".join([f"## {escaped(grid.title)}", "", *header, "", *_bars(grid), *_remarks(grid.remarks), ""])


def _lines(table: Table, heading: int) -> Iterator[str]:
    yield f"{'#' * heading} {escaped(cells.title(table))}"
    yield ""
    if table.other_settings:
        yield from _bars(table_views.overview_grid(table))
        yield ""
    for section in table.sections:
        yield from (f"{'#' * (heading + 1)} {escaped(section.title)}", "")
        yield from (f"- {escaped(line)}" for line in section.lines)
        yield ""
    if not table.other_settings:
        yield from _body(table, heading + 1)
        return
    common, tables = table_views.split_notes(table)
    for setting in tables:
        yield from (f"{'#' * (heading + 1)} {escaped(setting.setting)}", "")
        yield from _body(setting, heading + 2)
        yield ""
    yield f"{'#' * (heading + 1)} all of them"
    yield from _remarks(cells.remarks(common))


def _body(table: Table, heading: int) -> Iterator[str]:
    """Yield the rows, the certificates, other families, and the remarks."""
    yield from _bars(table_views.verdict_grid(table))
    yield ""
    yield from _certificates(table_views.certificate_lines(table.certificates))
    for family in table.families:
        yield from ("", f"{'#' * heading} {escaped(family.title)}", "")
        yield from _bars(table_views.family_grid(family))
        yield ""
        yield from _certificates(table_views.family_certificate_lines(family))
        yield from ("",) if family.certificates else ()
        yield from (f"- {escaped(line)}" for line in family.caption)
    yield from _remarks(cells.remarks(table))


def _bars(grid: Grid) -> Iterator[str]:
    """Yield a table: names as code, claims in bold."""
    yield _line([escaped(head.name) for head in grid.columns])
    yield _line(["--:" if head.align_right else ":--" for head in grid.columns])
    for row in grid.rows:
        yield _line([_cell(head, cell) for head, cell in zip(grid.columns, row, strict=True)])


def _cell(head: Column, cell: Cell) -> str:
    if head.wrap == "name":
        return code(cell.text, cell=True)
    text = escaped(cell.text) if head.wrap else cell.text
    return f"**{text}**" if cell.kind in CLAIMED else text


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _certificates(lines: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    yield from (f"- {mark} {code(name)}: {escaped(text)}" for mark, name, text in lines)


def _remarks(remarks: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    for mark, lines in remarks:
        if lines:
            yield ""
            yield from (f"- **{mark}** {escaped(line)}" if mark == "!" else f"- {escaped(line)}" for line in lines)


def escaped(text: str) -> str:
    """Escape text for Markdown."""
    return SPECIAL.sub(r"\\\1", clean(text))


def code(text: str, *, cell: bool = False) -> str:
    """Return text as a code span; in a cell, a vertical bar is escaped."""
    cleaned = clean(text)
    cleaned = cleaned.replace("|", "\\|") if cell else cleaned
    fence = "`" * (1 + max(map(len, re.findall("`+", cleaned)), default=0))
    room = " " if "`" in cleaned else ""
    return f"{fence}{room}{cleaned}{room}{fence}"
