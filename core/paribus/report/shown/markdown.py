"""A table in Markdown, as GitHub shows it: for a RESULTS.md, an issue or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from paribus.report.shown import besides, cells, several
from paribus.report.tables.family import Family
from paribus.report.tables.row import Row
from paribus.report.tables.table import Table
from paribus.report.words import clean

CLAIMED: Final = ("better", "worse", "equivalent")
SPECIAL: Final = re.compile(r"([\\`*_<>|#~\[\]])")


def markdown(table: Table, *, heading: int = 2) -> str:
    """The whole table with its certificates, warnings and captions, under a heading of this level."""
    return "\n".join([*_lines(table, heading), ""])


def _lines(table: Table, heading: int) -> Iterator[str]:
    yield f"{'#' * heading} {escaped(cells.title(table))}"
    yield ""
    if table.further:
        yield from _glance(table)
    for section in table.sections:
        yield from (f"{'#' * (heading + 1)} {escaped(section.title)}", "")
        yield from (f"- {escaped(line)}" for line in section.lines)
        yield ""
    if not table.further:
        yield from _body(table, heading + 1)
        return
    common, own = several.parted(table)
    for each in own:
        yield from (f"{'#' * (heading + 1)} {escaped(each.setting)}", "")
        yield from _body(each, heading + 2)
        yield ""
    yield f"{'#' * (heading + 1)} all of them"
    yield from _remarks(common)


def _glance(table: Table) -> Iterator[str]:
    """Every variant in every setting."""
    yield _line(["variant", *(escaped(each.setting) for each in table.every)])
    yield _line([":--" for _ in (table, *table.every)])
    for glance in several.glances(table):
        texts = (escaped(text) for text, _ in glance.found)
        rows = (row for _, row in glance.found)
        shown = [f"**{text}**" if row and row.kind in CLAIMED else text for text, row in zip(texts, rows, strict=True)]
        yield _line([code(glance.variant, cell=True), *shown])
    yield ""


def _body(table: Table, heading: int) -> Iterator[str]:
    """The rows, the certificates, and the remarks."""
    costs = cells.costs(table)
    metric = escaped(table.metric.rpartition("/")[2])
    yield _line(["variant", "n", metric, "difference", "verdict", *(cells.COSTS[name] for name in costs)])
    yield _line([":--", "--:", "--:", ":--", ":--", *("--:" for _ in costs)])
    digits = cells.digits(table)
    for row in (table.baseline, *table.rows):
        yield _line(_cells(row, digits[row.variant], costs))
    yield ""
    for name, certificate in table.certificates.items():
        yield f"- {'✓' if certificate.ok else '✗'} {code(name)}: {escaped(certificate.text)}"
    for family in table.besides:
        yield from _besides(family, heading)
    yield from _remarks(table)


def _remarks(table: Table) -> Iterator[str]:
    for mark, lines in cells.remarks(table):
        if lines:
            yield ""
            yield from (f"- **{mark}** {escaped(line)}" if mark == "!" else f"- {escaped(line)}" for line in lines)


def _besides(family: Family, heading: int) -> Iterator[str]:
    """Another family of verdicts, under its own heading."""
    yield from ("", f"{'#' * heading} {escaped(family.title)}", "")
    headers = besides.headers(family)
    yield _line(headers)
    yield _line(["--:" if header == "n" else ":--" for header in headers])
    for row, texts in besides.lines(family):
        *names, count, difference, verdict = texts
        claimed = row.kind in ("better", "worse", "equivalent")
        shown = [code(name, cell=True) for name in names]
        yield _line([*shown, count, difference, f"**{escaped(verdict)}**" if claimed else escaped(verdict)])
    yield ""
    for ok, name, text in besides.certificates(family):
        yield f"- {'✓' if ok else '✗'} {code(name)}: {escaped(text)}"
    if family.certificates:
        yield ""
    yield from (f"- {escaped(line)}" for line in family.caption)


def _cells(row: Row, digits: int, costs: Sequence[str]) -> list[str]:
    verdict = escaped(cells.verdict(row))
    claimed = row.kind in CLAIMED
    return [
        code(row.variant, cell=True),
        cells.count(row),
        cells.number(row.mean, digits),
        cells.difference(row, digits),
        f"**{verdict}**" if claimed else verdict,
        *(cells.cost(row, name) for name in costs),
    ]


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return SPECIAL.sub(r"\\\1", clean(text))


def code(text: str, *, cell: bool = False) -> str:
    """Text in a code span that holds whatever is in it; in a cell, a bar would end the cell even there."""
    shown = clean(text)
    shown = shown.replace("|", "\\|") if cell else shown
    fence = "`" * (1 + max(map(len, re.findall("`+", shown)), default=0))
    room = " " if "`" in shown else ""
    return f"{fence}{room}{shown}{room}{fence}"
