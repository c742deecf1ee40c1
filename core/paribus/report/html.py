"""HTML page of a study, self-contained: answers, charts, tables, certificates and provenance."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from itertools import groupby
from typing import Any, Final, NamedTuple

from paribus.analysis.formatting import NO_VALUE, Grid, clean
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.errors import join_names
from paribus.report import table_views
from paribus.report.attention_section import AttentionSection
from paribus.report.charts import Figure, with_theme
from paribus.report.figures import setting_figures, settings_figures
from paribus.report.provenance import entry_runs, provenance_lines
from paribus.specs.diff import MISSING, differences

Trials = Mapping[str, Sequence[TrialEntry]]  # setting -> trials in its table
Comparisons = Mapping[str, ComparisonSpec]  # setting -> its comparison
MAX_DATA_ROWS: Final = 400  # rows of the table of numbers under a chart


def html_page(
    table: Table, trials: Trials, comparisons: Comparisons, commit: str = "", attention: AttentionSection | None = None
) -> str:
    """Return the results of a study as one HTML document that loads nothing."""
    return _page("report", table_views.table_title(table), _lines(table, trials, comparisons, commit, attention))


def values_page(table: Table) -> str:
    """Return the verdicts on numbers, of which no trials are known, as one HTML document that loads nothing."""
    body = (*_warnings(table), *_body(table, {}, {}, "h2"), *_notes(table))
    return _page("compare-values", table_views.table_title(table), body)


class Section(NamedTuple):
    """Section of a page: a heading, charts, a table and lines below it."""

    title: str
    figures: Sequence[Figure] = ()
    grid: Grid | None = None
    lines: Sequence[str] = ()


def sections_page(title: str, series: Mapping[str, tuple[str, bool]], sections: Iterable[Section]) -> str:
    """Return sections as one HTML document that loads nothing.

    `series` maps each name in the charts to its mark, as SVG, and to whether it is shown initially.
    """
    boxes = (
        f'<label><input type="checkbox" value="{_text(name)}"{" checked" * is_shown}> {mark} {_text(name)}</label>'
        for name, (mark, is_shown) in series.items()
    )
    body = [f'<fieldset class="controls key"><legend>In the charts</legend>{"".join(boxes)}</fieldset>']
    for section in sections:
        body.append(f"<h2>{_text(section.title)}</h2>")
        body += [_charts(section.figures, "")] if section.figures else []
        body += [_table(section.grid)] if section.grid is not None else []
        body += [_list(section.lines, "small")] if section.lines else []
    return _page("bench", title, body)


def generator_tag(command: str) -> str:
    """Return the element that marks a page as written by a command, which may overwrite its own pages only."""
    return f'<meta name="generator" content="paribus {command}">'


def _page(command: str, title: str, body: Iterable[str]) -> str:
    """Return a document with the style and the scripts of a page, whose policy allows no other scripts."""
    return "\n".join([*_document(command, escape(title), body), ""])


def _document(command: str, title: str, body: Iterable[str]) -> Iterator[str]:
    scripts = [_file("vega.js"), _file("page.js")]
    allowed_scripts = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    yield "<!doctype html>"
    yield f'<html lang="en"><head><meta charset="utf-8">{generator_tag(command)}'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed_scripts}"
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield f"<title>{title}</title><style>{_file('page.css')}</style></head><body>"
    yield f"<h1>{title}</h1>"
    yield from body
    yield "<noscript><p class=warning>The charts need JavaScript; the tables have all their numbers.</p></noscript>"
    yield from (f"<script>{script}</script>" for script in scripts)
    yield "</body></html>"


def _lines(
    table: Table, trials: Trials, comparisons: Comparisons, commit: str, attention: AttentionSection | None
) -> Iterator[str]:
    if table.other_settings:
        yield from _all_settings(table, trials, comparisons)
    else:
        yield from _sections(table)
        yield from (*_warnings(table), *_body(table, trials, comparisons, "h2"), *_notes(table))
    yield from _attention(attention) if attention is not None else ()
    yield from _trials(table, trials)
    yield "<h2>Provenance</h2>"
    runs, planned_count = entry_runs(entry for entries in trials.values() for entry in entries)
    yield _list([f"{label}: {text}" for label, text in provenance_lines(runs, planned_count, commit)], "small")
    yield "<h2>Reproduce it</h2>"
    yield f"<pre>paribus run {_text(table.study)}\nparibus report {_text(table.study)}</pre>"


@cache
def _file(name: str) -> str:
    """Return a file of this package: Vega, or the script or style of the page."""
    return resources.files("paribus.report").joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """Return the digest of a script for the page's policy, which blocks all other scripts."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _controls(table: Table) -> Iterator[str]:
    """Yield a check box for each variant, which shows or hides it in the charts."""
    names = dict.fromkeys(clean(row.variant) for setting in table.settings for row in (setting.baseline, *setting.rows))
    boxes = (f'<label><input type="checkbox" value="{escape(name)}" checked> {escape(name)}</label>' for name in names)
    yield f'<fieldset class="controls"><legend>Variants in the charts</legend>{"".join(boxes)}</fieldset>'


def _answers(table: Table) -> str:
    """Return one sentence for each variant."""
    lines = (
        f"<li><b class={row.kind}>{_text(row.variant)}</b> {_text(table_views.answer(table, row))}</li>"
        for row in table.rows
    )
    return f'<ul class="answers">{"".join(lines)}</ul>'


def _charts(figures: Sequence[Figure], prefix: str) -> str:
    """Return all charts; of successive ones with a choice, the first is shown, and a menu shows another one."""
    parts: list[str] = []
    for kind, group in groupby(figures, key=lambda figure: figure.choice and figure.choice[0]):
        members = [(figure, f"{prefix}{figure.name}") for figure in group]
        is_menu = kind is not None and len(members) > 1
        charts = "".join(_chart(it, name, hidden=is_menu and at > 0) for at, (it, name) in enumerate(members))
        parts.append(_menu(str(kind), members, charts) if is_menu else charts)
    return f'<div class="charts">{"".join(parts)}</div>'


def _menu(label: str, members: Sequence[tuple[Figure, str]], charts: str) -> str:
    """Return charts with a menu that shows one of them."""
    options = "".join(
        f'<option value="{escape(name)}">{_text(figure.choice[1] if figure.choice else figure.title)}</option>'
        for figure, name in members
    )
    menu = f'<div class="choices"><label>{_text(label)} <select name="chart">{options}</select></label></div>'
    return f'<div class="menu">{menu}{charts}</div>'


def _chart(figure: Figure, element_id: str, *, hidden: bool = False) -> str:
    """Return a chart with its caption, controls of its axes, and its numbers as a table."""
    chart = with_theme(figure.chart.properties(description=clean(figure.description))).to_dict()
    document = json.dumps(chart, separators=(",", ":")).replace("<", "\\u003c")
    controls = ""
    if figure.x_choices and len(figure.x_choices) > 1:
        options = "".join(f'<option value="{key}">{escape(title)}</option>' for key, title in figure.x_choices.items())
        controls += f'<label>x-axis: <select name="x">{options}</select></label>'
    if figure.log_choice:
        controls += '<label><input type="checkbox" name="log"> logarithmic</label>'
    grid = [[escape(title) for title in figure.columns.values()]]
    grid += [
        [_text(_format_value(value.get(key))) for key in figure.columns] for value in figure.values[:MAX_DATA_ROWS]
    ]
    head, *rows = (
        f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in row)}</tr>"
        for row, tag in zip(grid, ["th", *["td"] * len(grid)], strict=False)
    )
    note = _text(f"{figure.note} {figure.page_note}".strip())
    return (
        f'<figure id="{escape(element_id)}"{" class=full" if figure.full else ""}{" hidden" * hidden}>'
        f"<figcaption>{_text(figure.title)}<span>{note}</span></figcaption>"
        f'{f"<div class=choices>{controls}</div>" if controls else ""}<div class="chart"></div>'
        f'<script type="application/json">{document}</script>'
        '<details><summary>Numbers of this chart</summary><div class="wide">'
        f"<table>{head}{''.join(rows)}</table></div></details></figure>"
    )


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _attention(section: AttentionSection) -> Iterator[str]:
    """Yield the attention maps of trained models for one text, with notes on variants without a map."""
    text = f"<q>{_text(section.text)}</q>. The sliders of all maps move together."
    yield f"<h2>Attention maps</h2><p>Weights of the models with seed {section.seed} for the text {text}</p>"
    yield _charts(section.figures, "")
    yield _list(section.notes, "small") if section.notes else ""


def _all_settings(table: Table, trials: Trials, comparisons: Comparisons) -> Iterator[str]:
    """Yield an overview of all settings, then each setting in full."""
    common, tables = table_views.split_notes(table)
    yield from _warnings(common)
    yield from _controls(table)
    yield _charts(list(settings_figures(table)), "")
    yield _table(table_views.overview_grid(table))
    yield from _sections(table)
    for setting in tables:
        yield f"<h2>{_text(setting.setting)}</h2>"
        yield from (*_warnings(setting), *_body(setting, trials, comparisons, "h3"), *_notes(setting, "h3"))
    yield from _notes(common)


def _sections(table: Table) -> Iterator[str]:
    for section in table.sections:
        yield f"<h2>{_text(section.title)}</h2>{_list(section.lines)}"


def _warnings(table: Table) -> Iterator[str]:
    """Yield the warnings, which are above everything else."""
    yield from (f'<p class="warning">{_text(line)}</p>' for line in table.warnings)


def _body(table: Table, trials: Trials, comparisons: Comparisons, heading: str) -> Iterator[str]:
    """Yield the answers, charts, the table, other families, certificates and differences between specs."""

    def headed(title: str) -> str:
        return f"<{heading}>{_text(title)}</{heading}>"

    entries = trials.get(table.setting, ())
    yield _answers(table)
    # In a page of several settings, the controls are above all of them.
    if heading == "h2":
        yield from _controls(table)
    prefix = f"{list(trials).index(table.setting)}-" if len(trials) > 1 else ""
    yield _charts(list(setting_figures(table, entries, comparisons.get(table.setting))), prefix)
    yield headed("Verdicts") + _table(table_views.verdict_grid(table))
    if table_views.has_inference(table):
        yield headed("Inference") + _table(table_views.inference_grid(table))
    if table.certificates:
        yield headed("Certificates") + _certificates(table_views.certificate_lines(table.certificates))
    for family in table.families:
        yield headed(family.title) + _table(table_views.family_grid(family))
        if family.certificates:
            yield _certificates(table_views.family_certificate_lines(family))
        yield _list(family.caption, "small")
    yield from _spec_differences(table, entries, headed("Differences between the specs"))


def _spec_differences(table: Table, entries: Sequence[TrialEntry], title: str) -> Iterator[str]:
    """Yield a table of the keys in which a spec differs from the baseline's, with a column for each variant."""
    specs: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        specs.setdefault(entry.variant, {key: value for key, value in entry.spec.items() if key != "seed"})
    base = specs.get(table.baseline.variant)
    differences_by_variant = {
        row.variant: list(differences(base, specs[row.variant])) for row in table.rows if base and row.variant in specs
    }
    paths = sorted({item.path for items in differences_by_variant.values() for item in items})
    if not paths:
        return
    yield title
    cells = {name: {item.path: item for item in items} for name, items in differences_by_variant.items()}
    baseline_values = {item.path: item.before for items in differences_by_variant.values() for item in items}
    head = "".join(f"<th>{_text(name)}</th>" for name in ("key", table.baseline.variant, *cells))
    rows = "".join(
        f"<tr><th>{_text(path)}</th><td>{_option(baseline_values[path])}</td>"
        + "".join(f"<td>{_option(items[path].after) if path in items else ''}</td>" for items in cells.values())
        + "</tr>"
        for path in paths
    )
    yield f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def _option(value: Any) -> str:
    """Return the value of a key of a spec as text; a missing key is shown as `-`."""
    return NO_VALUE if value is MISSING else _text(json.dumps(value, ensure_ascii=False, default=str).strip('"'))


def _trials(table: Table, trials: Trials) -> Iterator[str]:
    """Yield every trial with its state, its metric and its training time."""
    unique = {entry.identity: entry for entries in trials.values() for entry in entries}
    rows = "".join(
        f"<tr><td>{_text(entry.variant)}</td><td>{entry.seed}</td><td class={entry.state}>{_text(_state(entry))}</td>"
        f"<td>{_format_value(entry.value(table.metric)) if entry.done else NO_VALUE}</td>"
        f"<td>{entry.provenance.get('training_seconds') or 0.0:.1f}</td><td>{entry.identity}</td></tr>"
        for entry in unique.values()
    )
    heads = "".join(
        f"<th>{head}</th>" for head in ("variant", "seed", "state", _text(table.metric), "seconds", "trial")
    )
    states = [entry.state for entry in unique.values()]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    yield f"<h2>Trials</h2><details><summary>{counts}</summary>"
    yield f'<div class="wide"><table><tr>{heads}</tr>{rows}</table></div></details>'


def _state(entry: TrialEntry) -> str:
    """Return the state of a trial, with changes since its record, and the message of its failure."""
    failure = str((entry.failure or {}).get("message", ""))
    changes = f"changed since: {join_names(entry.changed)}" if entry.changed else ""
    return ", ".join(filter(None, (entry.state, changes, failure)))


def _certificates(lines: Sequence[tuple[str, str, str]]) -> str:
    return _list([f"{mark} {name}: {text}" for mark, name, text in lines])


def _notes(table: Table, heading: str = "h2") -> Iterator[str]:
    """Yield the notes and the caption of a table."""
    if table.notes:
        yield f"<{heading}>Not in the table</{heading}>{_list(table.notes)}"
    if table.caption:
        yield f"<{heading}>How to read it</{heading}>{_list(table.caption, 'small')}"


def _table(grid: Grid) -> str:
    def cell(tag: str, text: str, *classes: str) -> str:
        names = " ".join(filter(None, classes))
        return f"<{tag}{f' class={chr(34)}{names}{chr(34)}' if names else ''}>{_text(text)}</{tag}>"

    kinds = ["right" if head.align_right else "folds" if head.wrap else "" for head in grid.columns]
    heads = "".join(cell("th", head.name, align) for head, align in zip(grid.columns, kinds, strict=True))
    rows = (
        "".join(cell("td", text, align, kind) for (text, kind, _), align in zip(row, kinds, strict=True))
        for row in grid.rows
    )
    return f'<div class="wide"><table>{"".join(f"<tr>{row}</tr>" for row in (heads, *rows))}</table></div>'


def _list(lines: Sequence[str], name: str = "") -> str:
    return (
        f"<ul{f' class={chr(34)}{name}{chr(34)}' if name else ''}>"
        + "".join(f"<li>{_text(line)}</li>" for line in lines)
        + "</ul>"
    )


def _text(text: str) -> str:
    return escape(clean(text))
