"""Verdict tables as HTML for a notebook: a picture of each interval beside its row, without scripts or style sheets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from paribus.analysis.formatting import Column, Grid, clean
from paribus.analysis.table import Row, Table
from paribus.report import table_views
from paribus.report.charts import VERDICT_COLORS
from paribus.report.plots import plot_range

WIDTH: Final = 180  # of a picture, in pixels
HEIGHT: Final = 16


def notebook_html(table: Table) -> str:
    """Return the verdicts of all settings with their warnings; notes and captions are folded below them."""
    return f"<div>{''.join(_parts(table))}</div>"


def _parts(table: Table) -> Iterator[str]:
    yield f"<b>{_text(table_views.table_title(table))}</b>"
    common, tables = table_views.split_notes(table) if table.other_settings else (None, [table])
    for part in tables:
        yield f"<p>{_text(part.setting)}</p>" if part.setting else ""
        yield _verdicts(part)
        for family in part.families:
            yield f"<p>{_text(family.title)}</p>{_table(table_views.family_grid(family), part, family.rows)}"
        yield _warnings(part)
    shared = [] if common is None else [common]
    yield from map(_warnings, shared)
    lines = [line for section in table.sections for line in section.lines]
    lines += [line for part in (*shared, *tables) for line in (*part.notes, *part.caption)]
    lines += [line for part in tables for family in part.families for line in family.caption]
    items = "".join(f"<li>{_text(line)}</li>" for line in dict.fromkeys(lines))
    yield f"<details><summary>How to read it</summary><ul>{items}</ul></details>"


def _warnings(table: Table) -> str:
    return "".join(f"<p>\N{WARNING SIGN} {_text(line)}</p>" for line in table.warnings)


def _verdicts(table: Table) -> str:
    return _table(table_views.verdict_grid(table), table, (table.baseline, *table.rows))


def _table(grid: Grid, table: Table, rows: Sequence[Row]) -> str:
    """Return a table with a picture before the verdict."""
    index = next(index for index, column in enumerate(grid.columns) if column.wrap == "verdict")
    sides = ("better", "worse") if table.better == "lower" else ("worse", "better")
    head = [_cell("th", column, _text(column.name)) for column in grid.columns]
    head.insert(index, f"<th>\N{LEFTWARDS ARROW} {sides[0]}, {sides[1]} \N{RIGHTWARDS ARROW}</th>")
    lines = [f"<tr>{''.join(head)}</tr>"]
    low, high = plot_range([row for row in rows if row.kind != "baseline"], table.margin)
    for row, cells in zip(rows, grid.rows, strict=True):
        texts = [_cell("td", column, _text(cell.text)) for column, cell in zip(grid.columns, cells, strict=True)]
        texts[index] = f"<td>{_verdict(row, cells[index].text)}</td>"
        texts.insert(index, f"<td>{_interval(row, table.margin, low, high)}</td>")
        lines.append(f"<tr>{''.join(texts)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _cell(tag: str, column: Column, text: str) -> str:
    side = "right" if column.align_right else "left"
    wrap = "" if column.wrap else "; white-space: nowrap"
    return f'<{tag} align="{side}" style="text-align: {side}{wrap}">{text}</{tag}>'


def _verdict(row: Row, text: str) -> str:
    return f"<b>{_text(text)}</b>" if row.kind in table_views.CLAIMED else _text(text)


def _interval(row: Row, margin: float | None, low: float, high: float) -> str:
    """Return the interval of a row beside zero and the margin, all rows on one scale."""
    if row.difference is None:
        return ""

    def place(value: float) -> float:
        return round(6 + (WIDTH - 12) * min(max((value - low) / (high - low), 0.0), 1.0), 1)

    color, middle = VERDICT_COLORS.get(row.kind, VERDICT_COLORS["other"]), HEIGHT / 2
    marks = ""
    if margin is not None:
        start, end = place(-margin), place(margin)
        marks += f'<rect x="{start}" y="0" width="{end - start:.1f}" height="{HEIGHT}" fill="gray" opacity="0.15"/>'
    zero = place(0.0)
    marks += f'<line x1="{zero}" x2="{zero}" y1="0" y2="{HEIGHT}" stroke="gray"/>'
    if row.low is not None and row.high is not None:
        ends = f'x1="{place(row.low)}" x2="{place(row.high)}" y1="{middle}" y2="{middle}"'
        marks += f'<line {ends} stroke="{color}" stroke-width="3"/>'
    marks += f'<circle cx="{place(row.difference)}" cy="{middle}" r="4" fill="{color}"/>'
    label = f'role="img" aria-label="{_text(row.summary)}"'
    return f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" {label}>{marks}</svg>'


def _text(text: str) -> str:
    return escape(clean(text))
