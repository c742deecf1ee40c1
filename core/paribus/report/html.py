"""HTML page of a study, self-contained: tables, plots, certificates and provenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from paribus.analysis.formatting import Grid, clean
from paribus.analysis.table import Table
from paribus.analysis.trials import TrialEntry
from paribus.report import table_views
from paribus.report.plots import curve_points, curves_svg, forest_svg
from paribus.report.provenance import entry_runs, provenance_lines

MADE: Final = '<meta name="generator" content="paribus report">'
Trials = Mapping[str, Sequence[TrialEntry]]  # the trials in the table of each setting

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2327; --soft: #66727a; --rule: #d5dbdf; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ea; --soft: #9aa6ad; --rule: #3b444a; --page: #15191c; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } h3 { font-size: 1rem; margin-top: 1.4rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top; }
th { font-weight: 600; } td.right, th.right { text-align: right; } td:not(.folds), th { white-space: nowrap; }
svg { max-width: 100%; height: auto; display: block; }
svg text { font: 13px system-ui, sans-serif; fill: var(--ink); } svg text.tick { fill: var(--soft); font-size: 12px; }
.axis { stroke: var(--soft); } .grid { stroke: var(--rule); } .margin { fill: var(--soft); opacity: .13; }
.interval { stroke-width: 2.5; stroke: var(--soft); } circle { fill: var(--soft); }
.interval.better { stroke: #1a7f37; } circle.better { fill: #1a7f37; } td.better { color: #1a7f37; font-weight: 600; }
.interval.worse { stroke: #c8321f; } circle.worse { fill: #c8321f; } td.worse { color: #c8321f; font-weight: 600; }
.interval.equivalent { stroke: #0a7ea4; } circle.equivalent { fill: #0a7ea4; }
td.equivalent { color: #0a7ea4; font-weight: 600; } td.baseline { color: var(--soft); }
td.withheld, td.diverged, td.failed { color: #8a3ab9; font-weight: 600; }
circle.hollow { fill: var(--page); stroke: var(--soft); stroke-width: 2; }
.curve { fill: none; stroke-width: 1.4; opacity: .75; }
.warning { border-left: 4px solid #c98a00; padding-left: .8rem; }
.small { color: var(--soft); font-size: .92rem; }
li { margin: .2rem 0; }
"""


def html_page(table: Table, trials: Trials, commit: str = "") -> str:
    """Return the table of a study as one HTML document that loads nothing and runs no script."""
    return "\n".join([*_lines(table, trials, commit), ""])


def _lines(table: Table, trials: Trials, commit: str) -> Iterator[str]:
    title = escape(table_views.table_title(table))
    yield "<!doctype html>"
    yield f'<html lang="en"><head><meta charset="utf-8">{MADE}'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield f"<title>{title}</title><style>{STYLE}</style></head><body>"
    yield f"<h1>{title}</h1>"
    if table.other_settings:
        yield from _several(table, trials)
    else:
        yield from _sections(table)
        yield from (*_warned(table), *_body(table, trials, "h2"), *_read(table))
    yield "<h2>Provenance</h2>"
    runs, planned = entry_runs(entry for entries in trials.values() for entry in entries)
    yield _list([f"{label}: {text}" for label, text in provenance_lines(runs, planned, commit)], "small")
    yield "</body></html>"


def _several(table: Table, trials: Trials) -> Iterator[str]:
    """Yield all settings in one overview, then each setting in full."""
    common, tables = table_views.split_notes(table)
    yield from _warned(common)
    yield _table(table_views.overview_grid(table))
    yield from _sections(table)
    for setting in tables:
        yield f"<h2>{_said(setting.setting)}</h2>"
        yield from (*_warned(setting), *_body(setting, trials, "h3"), *_read(setting, "h3"))
    yield from _read(common)


def _sections(table: Table) -> Iterator[str]:
    for section in table.sections:
        yield f"<h2>{_said(section.title)}</h2>{_list(section.lines)}"


def _warned(table: Table) -> Iterator[str]:
    """Yield the warnings, which stand first."""
    yield from (f'<p class="warning">{_said(line)}</p>' for line in table.warnings)


def _body(table: Table, trials: Trials, heading: str) -> Iterator[str]:
    """Yield the table, its plots, other families, and certificates."""

    def under(title: str) -> str:
        return f"<{heading}>{_said(title)}</{heading}>"

    yield _table(table_views.verdict_grid(table))
    if table.rows:
        yield under("Differences") + forest_svg(table)
    names = [row.variant for row in (table.baseline, *table.rows)]
    if plot := curves_svg(curve_points(trials.get(table.setting, ())), table.metric, names):
        yield under(f"{table.metric} by step") + plot
    if table.certificates:
        yield under("Certificates") + _certificates(table_views.certificate_lines(table.certificates))
    for family in table.families:
        yield under(family.title) + _table(table_views.family_grid(family))
        if family.certificates:
            yield _certificates(table_views.family_certificate_lines(family))
        yield _list(family.caption, "small")


def _certificates(lines: Sequence[tuple[str, str, str]]) -> str:
    return _list([f"{mark} {name}: {text}" for mark, name, text in lines])


def _read(table: Table, heading: str = "h2") -> Iterator[str]:
    """Yield the notes and the caption of a table."""
    if table.notes:
        yield f"<{heading}>Not in the table</{heading}>{_list(table.notes)}"
    if table.caption:
        yield f"<{heading}>How to read it</{heading}>{_list(table.caption, 'small')}"


def _table(grid: Grid) -> str:
    def cell(tag: str, text: str, *classes: str) -> str:
        names = " ".join(filter(None, classes))
        return f"<{tag}{f' class={chr(34)}{names}{chr(34)}' if names else ''}>{_said(text)}</{tag}>"

    kinds = ["right" if head.align_right else "folds" if head.wrap else "" for head in grid.columns]
    heads = "".join(cell("th", head.name, align) for head, align in zip(grid.columns, kinds, strict=True))
    rows = (
        "".join(cell("td", text, align, kind) for (text, kind), align in zip(row, kinds, strict=True))
        for row in grid.rows
    )
    return f'<div class="wide"><table>{"".join(f"<tr>{row}</tr>" for row in (heads, *rows))}</table></div>'


def _list(lines: Sequence[str], name: str = "") -> str:
    return (
        f"<ul{f' class={chr(34)}{name}{chr(34)}' if name else ''}>"
        + "".join(f"<li>{_said(line)}</li>" for line in lines)
        + "</ul>"
    )


def _said(text: str) -> str:
    return escape(clean(text))
