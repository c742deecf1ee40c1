"""What a table says besides, as lines of cells: for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from paribus.report.shown import cells
from paribus.report.tables.family import Family
from paribus.report.tables.row import Row
from paribus.report.words import clean

HEADERS: Final = ("", "n", "difference", "verdict")


def headers(family: Family) -> list[str]:
    """The names of the columns; steps say what they are steps from."""
    return ["rung", "from", *HEADERS[1:]] if _stepped(family) else ["effect", *HEADERS[1:]]


def lines(family: Family) -> Iterator[tuple[Row, list[str]]]:
    """Each row with its cells."""
    decimals = _decimals(family)
    for row in family.rows:
        told = ", or ".join((row.variant, *row.aliases))
        name = [clean(told), *([clean(row.against)] if _stepped(family) else [])]
        yield row, [*name, cells.count(row), cells.difference(row, decimals), cells.verdict(row)]


def certificates(family: Family) -> Iterator[tuple[bool, str, str]]:
    """Whether it holds, of what it is, and what it says."""
    from_ = {row.variant: row.against for row in family.rows}
    for name, each in family.certificates.items():
        yield each.ok, f"{name}, from {from_[name]}", each.text


def _stepped(family: Family) -> bool:
    return any(row.against for row in family.rows)


def _decimals(family: Family) -> int:
    """As many for all rows as two digits of half an interval need, or nearly."""
    halves = [(row.high - row.low) / 2 for row in family.rows if row.low is not None and row.high is not None]
    sizes = [half for half in halves if half > 0] or [abs(row.difference) for row in family.rows if row.difference]
    found = [cells.decimals(size) for size in sizes] or [3]
    return min(max(found), min(found) + cells.SPREAD, cells.FINEST)
