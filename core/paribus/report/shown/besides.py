"""What a table says besides, as lines of cells: for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from paribus.report.shown import cells
from paribus.report.tables.contrasts import Contrast, Contrasts
from paribus.report.words import clean

HEADERS: Final = ("", "n", "difference", "verdict")


def headers(family: Contrasts) -> list[str]:
    """The names of the columns; steps say what they are steps from."""
    return ["rung", "from", *HEADERS[1:]] if _stepped(family) else ["effect", *HEADERS[1:]]


def lines(family: Contrasts) -> Iterator[tuple[Contrast, list[str]]]:
    """Each row with its cells."""
    decimals = _decimals(family)
    for row in family.rows:
        count = str(row.n) if row.n == row.planned else f"{row.n}/{row.planned}"
        told = ", or ".join((row.name, *row.aliases))
        name = [clean(told), *([clean(row.against)] if _stepped(family) else [])]
        yield row, [*name, count, _difference(row, decimals), clean(row.verdict)]


def certificates(family: Contrasts) -> Iterator[tuple[bool, str, str]]:
    """Whether it holds, of what it is, and what it says."""
    from_ = {row.name: row.against for row in family.rows}
    for name, each in family.certificates.items():
        yield each.ok, f"{name}, from {from_[name]}", each.text


def _stepped(family: Contrasts) -> bool:
    return any(row.against for row in family.rows)


def _difference(row: Contrast, decimals: int) -> str:
    found = cells.number(row.difference, decimals, signed=True)
    if row.low is None or row.high is None:
        return found
    return f"{found} [{cells.number(row.low, decimals, signed=True)}, {cells.number(row.high, decimals, signed=True)}]"


def _decimals(family: Contrasts) -> int:
    """As many for all rows as two digits of half an interval need, or nearly."""
    halves = [(row.high - row.low) / 2 for row in family.rows if row.low is not None and row.high is not None]
    sizes = [half for half in halves if half > 0] or [abs(row.difference) for row in family.rows if row.difference]
    found = [cells.decimals(size) for size in sizes] or [3]
    return min(max(found), min(found) + cells.SPREAD, cells.FINEST)
