"""Verdict tables as HTML for a notebook: each row has a plot of its interval, without scripts or style sheets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from paribus.analysis.formatting import Column, Grid, clean
from paribus.analysis.table import Row, Table
from paribus.report import table_views
from paribus.report.charts import VERDICT_COLORS
from paribus.report.plots import plot_range
from paribus.report.scaling_svg import scaling_svg

PLOT_WIDTH: Final = 180  # pixels
PLOT_HEIGHT: Final = 16


def notebook_html(table: Table) -> str:
    """Return the verdicts of all settings with their warnings, and a closed section of notes and captions."""
    return f"<div>{''.join(_parts(table))}</div>"


def _parts(table: Table) -> Iterator[str]:
    yield f"<b>{_text(table_views.table_title(table))}</b>"
    common, tables = table_views.split_notes(table) if table.other_settings else (None, [table])
    for setting in tables:
        yield f"<p>{_text(setting.setting)}</p>" if setting.setting else ""
        yield _table(table_views.verdict_grid(setting), setting, (setting.baseline, *setting.rows))
        for family in setting.families:
            yield f"<p>{_text(family.title)}</p>{_table(table_views.family_grid(family), setting, family.rows)}"
        yield _warnings(setting)
    yield scaling_svg(table)
    shared = [] if common is None else [common]
    yield from map(_warnings, shared)
    lines = [line for section in table.sections for line in section.lines]
    lines += [line for part in (*shared, *tables) for line in (*part.notes, *part.caption)]
    lines += [line for part in tables for family in part.families for line in family.caption]
    items = "".join(f"<li>{_text(line)}</li>" for line in dict.fromkeys(lines))
    yield f"<details><summary>How to read it</summary><ul>{items}</ul></details>"


def _warnings(table: Table) -> str:
    return "".join(f"<p>\N{WARNING SIGN} {_text(line)}</p>" for line in table.warnings)


def _table(grid: Grid, table: Table, rows: Sequence[Row]) -> str:
    """Return a table with a plot of each interval before its verdict."""
    index = next(index for index, column in enumerate(grid.columns) if column.wrap == "verdict")
    sides = ("better", "worse") if table.better == "lower" else ("worse", "better")
    heads = [_cell("th", column, _text(column.name)) for column in grid.columns]
    heads.insert(index, f"<th>\N{LEFTWARDS ARROW} {sides[0]}, {sides[1]} \N{RIGHTWARDS ARROW}</th>")
    lines = [f"<tr>{''.join(heads)}</tr>"]
    low, high = plot_range([row for row in rows if row.kind != "baseline"], table.margin)
    for row, cells in zip(rows, grid.rows, strict=True):
        texts = [_cell("td", column, _text(cell.text)) for column, cell in zip(grid.columns, cells, strict=True)]
        verdict = _text(cells[index].text)
        texts[index] = f"<td><b>{verdict}</b></td>" if row.kind in table_views.CLAIMED else f"<td>{verdict}</td>"
        texts.insert(index, f"<td>{_interval_plot(row, table.margin, low, high)}</td>")
        lines.append(f"<tr>{''.join(texts)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _cell(tag: str, column: Column, text: str) -> str:
    side = "right" if column.align_right else "left"
    wrap = "" if column.wrap else "; white-space: nowrap"
    return f'<{tag} align="{side}" style="text-align: {side}{wrap}">{text}</{tag}>'


def _interval_plot(row: Row, margin: float | None, low: float, high: float) -> str:
    """Return a plot of the interval of a row beside zero and the margin; all rows have one scale."""
    if row.difference is None:
        return ""

    def x_of(value: float) -> float:
        return round(6 + (PLOT_WIDTH - 12) * min(max((value - low) / (high - low), 0.0), 1.0), 1)

    color, center = VERDICT_COLORS.get(row.kind, VERDICT_COLORS["other"]), PLOT_HEIGHT / 2
    marks = ""
    if margin is not None:
        start, end = x_of(-margin), x_of(margin)
        marks += (
            f'<rect x="{start}" y="0" width="{end - start:.1f}" height="{PLOT_HEIGHT}" fill="gray" opacity="0.15"/>'
        )
    zero = x_of(0.0)
    marks += f'<line x1="{zero}" x2="{zero}" y1="0" y2="{PLOT_HEIGHT}" stroke="gray"/>'
    if row.low is not None and row.high is not None:
        ends = f'x1="{x_of(row.low)}" x2="{x_of(row.high)}" y1="{center}" y2="{center}"'
        marks += f'<line {ends} stroke="{color}" stroke-width="3"/>'
    marks += f'<circle cx="{x_of(row.difference)}" cy="{center}" r="4" fill="{color}"/>'
    label = f'role="img" aria-label="{_text(row.summary)}"'
    size = f'width="{PLOT_WIDTH}" height="{PLOT_HEIGHT}" viewBox="0 0 {PLOT_WIDTH} {PLOT_HEIGHT}"'
    return f"<svg {size} {label}>{marks}</svg>"


def _text(text: str) -> str:
    return escape(clean(text))
