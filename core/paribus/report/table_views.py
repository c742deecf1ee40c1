"""Views of a study's tables as grids of text: verdicts, families, an overview of all settings, and CSV.

Every output format renders these grids, with the title and the remarks of a table.
"""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from paribus.analysis.captions import holding, test_name
from paribus.analysis.certificates import Certificate
from paribus.analysis.costs import INFERENCE_LABELS, LABELS, Cost
from paribus.analysis.formatting import (
    MAX_DECIMALS,
    NO_VALUE,
    TIMES,
    Cell,
    Column,
    Grid,
    clean,
    compact,
    format_bare_difference,
    format_count,
    format_difference,
    format_number,
    last_text,
    percent,
    refuse_unknown_columns,
    row_cells,
    row_decimals,
    span,
    table_decimals,
)
from paribus.analysis.table import Columns, Family, Row, Table

FOLD_UNIT: Final = re.compile(r"\([^()]*\),? *|[^\s(=,]+[=,]? *|.")  # is broken only if wider than a line
FOLD_PART: Final = re.compile(r"[^\s._=-]+[._=-]*\s*|.")
SOURCE: Final = "`paribus compare --notes`"  # of the captions of a table
BYTES: Final = ("cache_bytes_per_token", "peak_bytes", "inference_bytes")
CLAIMED: Final = ("better", "worse", "equivalent", "faster", "slower")  # kinds of verdicts that make a claim
SETTING: Final = "setting"
COUNT: Final = " (n = "  # start of the number of seeds in a title
VERDICT_COLUMNS: Final = ("variant", "n", "mean", "difference", "verdict")
ALL_LABELS: Final[Mapping[str, str]] = {**LABELS, **INFERENCE_LABELS}
FORMULA_SIGNS: Final = ("=", "+", "-", "@")  # first letters of a text that a spreadsheet runs as a formula


def fold_text(text: str, width: int) -> str:
    """Fold text into lines of at most `width`, between words and options: `attention=restricted`, `(window=16)`."""
    lines = [""]
    for word in FOLD_UNIT.findall(text):
        for piece in _pieces(word, width):
            if len((lines[-1] + piece).rstrip()) <= width:
                lines[-1] += piece
            else:
                lines.append(piece)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _pieces(word: str, width: int) -> list[str]:
    """Return a word whole if it fits, else its parts between dots, hyphens and underscores, cut to fit."""
    if len(word.rstrip()) <= width:
        return [word]
    *starts, end = textwrap.wrap(word, width, break_long_words=False, break_on_hyphens=False)
    chunks = [*(f"{start} " for start in starts), end + word[len(word.rstrip()) :]]
    parts = [
        part for chunk in chunks for part in (FOLD_PART.findall(chunk) if len(chunk.rstrip()) > width else [chunk])
    ]
    return [part[start : start + width] for part in parts for start in range(0, len(part.rstrip()), width)]


def verdict_text(row: Row) -> str:
    """Return the verdict with its flags."""
    return clean(row.summary)


def cost_text(row: Row, name: str) -> str:
    """Return the cost of the baseline, or the ratio of a variant to it."""
    cost = row.costs[name]
    rough = "~" if cost.rough else ""
    if row.kind != "baseline":
        return NO_VALUE if cost.ratio is None else f"{rough}{_ratio(cost.ratio)}{TIMES}{_interval(cost)}"
    if cost.value is None:
        return NO_VALUE
    if name == "latency":
        return f"{cost.value * 1e3:.3g} ms"
    return rough + (compact(cost.value, 1024, "BKMGT") if name in BYTES else compact(cost.value, 1000, " kMGTPEZ"))


def _interval(cost: Cost) -> str:
    """` [1.02, 1.05]`, or empty without an interval."""
    if cost.low is None or cost.high is None:
        return ""
    return f" [{_ratio(cost.low)}, {_ratio(cost.high)}]"


def shown_costs(table: Table) -> list[str]:
    """Return the names of the costs that any row has."""
    return [name for name in LABELS if any(row.costs[name].value is not None for row in (table.baseline, *table.rows))]


def has_inference(table: Table) -> bool:
    """Return whether the inference of any row was timed."""
    return any(row.costs[name].value is not None for row in (table.baseline, *table.rows) for name in INFERENCE_LABELS)


def inference_grid(table: Table) -> Grid:
    """Return the latency, the speed and the memory of inference."""
    return Grid(
        title=f"{clean(table.study)}: inference",
        columns=[
            Column("inference", wrap="name", key="variant"),
            *(
                Column(label.removeprefix("inference "), align_right=True, key=name)
                for name, label in INFERENCE_LABELS.items()
            ),
        ],
        rows=[
            row_cells([clean(row.name), *(cost_text(row, name) for name in INFERENCE_LABELS)], "")
            for row in (table.baseline, *table.rows)
        ],
        narrow_rows=[
            [
                Cell(clean(row.name)),
                *(Cell(f"{label} {cost_text(row, name)}") for name, label in INFERENCE_LABELS.items()),
            ]
            for row in (table.baseline, *table.rows)
        ],
    )


def answer(table: Table, row: Row) -> str:
    """Return the result of a variant as the rest of a sentence that begins with its name."""
    if row.difference is None:
        return f"has no verdict: {verdict_text(row)}."
    difference = format_difference(row, table_decimals(table)[row.variant])
    numbers = f"{difference} in {clean(table.metric)}, n = {row.n}"
    words = {
        "better": "is better than the baseline",
        "worse": "is worse than the baseline",
        "equivalent": "is equivalent to the baseline, within the margin",
        "identical": f"has the baseline's result: {verdict_text(row)}",
        "inconclusive": f"may be better or worse: {verdict_text(row)}",
    }
    return f"{words.get(row.kind, f'has no verdict: {verdict_text(row)}')} ({numbers})."


def table_title(table: Table) -> str:
    stage = f" after {clean(table.stage)}" if table.stage else ""
    return f"{clean(table.study)}: {clean(table.metric)}{last_text(table.last)}{stage}, {table.better} is better"


def without_captions(table: Table, source: str = SOURCE) -> Table:
    """Return a table with one line in place of the captions of all settings and families, which `source` has."""
    tables = table.settings
    rows = [row for part in tables for row in part.rows]
    count = sum(row.low is not None for row in rows)
    verb = "holds" if count == 1 and holding(rows) == "hold" else holding(rows)
    subject = f"The verdict {verb}" if count == 1 else f"{count} verdicts {verb} together"
    scope = f"{subject} with {percent(1 - table.alpha)} confidence, {_generality(rows, count)}; " if count else ""
    line = f"{scope}{source} explains the table"
    short = [
        replace(
            part,
            caption=(line,),
            families=tuple(replace(family, caption=()) for family in part.families),
            other_settings=(),
        )
        for part in tables
    ]
    return replace(short[0], other_settings=tuple(short[1:]))


def _generality(rows: Sequence[Row], count: int) -> str:
    """Return what `count` verdicts hold for: other seeds, and perhaps other questions of their task."""
    of_questions = sum(row.answers is not None and row.answers.holds for row in rows)
    if of_questions == count:
        return "for other seeds and other questions of the task"
    return (
        f"for other seeds, {of_questions} of them for other questions too" if of_questions else "for other seeds only"
    )


def table_remarks(table: Table) -> Sequence[tuple[str, Sequence[str]]]:
    """Return the lines under the table, by their mark."""
    return [
        ("!", [clean(line) for line in table.warnings]),
        ("-", [clean(line) for line in table.notes]),
        ("·", [clean(line) for line in table.caption]),
    ]


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if 0.1 <= ratio < 10 else f"{ratio:.3g}" if ratio < 1e5 else f"{ratio:.1e}"


def verdict_grid(table: Table, costs: Sequence[str] | None = None) -> Grid:
    """Return the baseline and each variant with its verdict and these costs, by default all that any row has."""
    costs = shown_costs(table) if costs is None else costs
    rows = (table.baseline, *table.rows)
    digits = table_decimals(table)
    return Grid(
        title=table_title(table),
        columns=[
            Column("variant", wrap="name"),
            Column("n", align_right=True),
            Column(clean(table.metric.rpartition("/")[2]), align_right=True, key="mean"),
            Column("difference"),
            Column("verdict", wrap="verdict"),
            *(Column(ALL_LABELS[name], align_right=True, key=name) for name in costs),
        ],
        rows=[_verdict(row, digits[row.variant], costs) for row in rows],
        narrow_rows=[_lines(row, digits[row.variant], clean(table.metric), costs) for row in rows],
        cost_columns=len(costs),
    )


def chosen_grid(table: Table, columns: Columns) -> Grid:
    """Return the rows of one setting with these columns, by default all that any row has."""
    if columns is None:
        return verdict_grid(table)
    return verdict_grid(table, list(ALL_LABELS)).select([name for name in columns if name != SETTING])


def family_grid(family: Family) -> Grid:
    """Return the rows of a family: steps with the rung below, effects with their aliases."""
    # Effects are sums over cells, so finer decimals are rounding errors.
    digits = {name: min(decimals, MAX_DECIMALS) for name, decimals in row_decimals(family.rows).items()}
    has_steps = any(row.baseline for row in family.rows)
    names = [Column("rung", wrap="name"), Column("from", wrap="name")] if has_steps else [Column("effect", wrap="name")]
    labels = [(clean(", or ".join((row.variant, *row.aliases))), clean(row.baseline)) for row in family.rows]
    rows = [(row, format_difference(row, digits[row.variant])) for row in family.rows]
    return Grid(
        title=clean(family.title),
        columns=[*names, Column("n", align_right=True), Column("difference"), Column("verdict", wrap="verdict")],
        rows=[
            row_cells([*label[: len(names)], format_count(row), difference, verdict_text(row)], row.kind)
            for label, (row, difference) in zip(labels, rows, strict=True)
        ],
        narrow_rows=[
            [
                Cell(" from ".join(label[: len(names)])),
                Cell(verdict_text(row), row.kind),
                Cell(f"{difference}, n {format_count(row)}"),
            ]
            for label, (row, difference) in zip(labels, rows, strict=True)
        ],
    )


def overview_grid(table: Table) -> Grid:
    """Return the baseline's metric and the result of each variant, in each setting."""
    rows = [{row.variant: row for row in setting.rows} for setting in table.settings]
    digits = [table_decimals(setting) for setting in table.settings]
    names = list(dict.fromkeys(row.variant for setting in table.settings for row in setting.rows))
    baseline = table.baseline.variant
    means = [
        Cell(format_number(setting.baseline.mean, min(decimals[baseline], MAX_DECIMALS)), "baseline")
        for setting, decimals in zip(table.settings, digits, strict=True)
    ]
    cells_by_variant = [
        [
            Cell(_overview(rows_of_setting[name], decimals[name]), rows_of_setting[name].kind)
            if name in rows_of_setting
            else Cell(NO_VALUE)
            for rows_of_setting, decimals in zip(rows, digits, strict=True)
        ]
        for name in names
    ]
    return Grid(
        title=table_title(table),
        columns=[Column("variant", wrap="name"), *(Column(clean(setting.setting)) for setting in table.settings)],
        rows=[
            [Cell(clean(name)), *cells_of_row]
            for name, cells_of_row in zip([baseline, *names], [means, *cells_by_variant], strict=True)
        ],
    )


def certificate_lines(certificates: Mapping[str, Certificate]) -> list[tuple[str, str, str]]:
    """Return a mark, the name and the text of each certificate."""
    return [(certificate.mark, clean(name), clean(certificate.text)) for name, certificate in certificates.items()]


def family_certificate_lines(family: Family) -> list[tuple[str, str, str]]:
    """Return a mark, the name and the text of each certificate of a family, with the rung below."""
    below = {row.variant: row.baseline for row in family.rows}
    return certificate_lines(
        {f"{name}, from {below[name]}": certificate for name, certificate in family.certificates.items()}
    )


def _verdict(row: Row, digits: int, costs: Sequence[str]) -> list[Cell]:
    texts = (clean(row.name), format_count(row), format_number(row.mean, digits), format_difference(row, digits))
    # The baseline has no verdict, so all cells of its row have its kind.
    kind = row.kind if row.kind == "baseline" else ""
    cells_of_row = [Cell(text, kind) for text in (*texts, verdict_text(row), *(cost_text(row, name) for name in costs))]
    cells_of_row[len(texts)] = cells_of_row[len(texts)]._replace(kind=row.kind)
    return cells_of_row


def _lines(row: Row, digits: int, metric: str, costs: Sequence[str]) -> list[Cell]:
    difference = [Cell(format_difference(row, digits))] if row.difference is not None else []
    return [
        Cell(clean(row.name)),
        Cell(verdict_text(row), row.kind),
        *difference,
        Cell(f"{metric} {format_number(row.mean, digits)}, n {format_count(row)}"),
        Cell(", ".join(f"{ALL_LABELS[name]} {cost_text(row, name)}" for name in costs), "aside"),
    ]


def _overview(row: Row, decimals: int) -> str:
    """`+0.031 worse`."""
    return f"{format_bare_difference(row, decimals)} {row.kind}".strip()


def study_grid(table: Table, columns: Columns = None) -> Grid:
    """Return the variants of all settings as one grid, for LaTeX and CSV, with a grid for each family.

    By default, the costs are a separate grid for a full page. `columns` selects others; that of settings always stays.
    """
    extra = [
        without_shared_count(_family(setting, family)).select(columns, ignore_unknown=True)
        for setting in table.settings
        for family in setting.families
    ]
    if columns is not None:
        grid = _all_settings(table, columns)
    else:
        grid = without_shared_count(_all_settings(table, VERDICT_COLUMNS))
        costs = [name for name in LABELS if any(name in shown_costs(setting) for setting in table.settings)]
        inference = [inference_grid(setting) for setting in table.settings if has_inference(setting)]
        extra = [*([_cost_grid(table, costs)] if costs else []), *inference, *extra]
    records = list(table_records(table))
    return replace(grid, caption=short_caption(table), remarks=_remarks(table), records=records, extra=extra)


def _all_settings(table: Table, columns: Sequence[str]) -> Grid:
    """Return these columns of the rows of all settings, after the name of the setting if there are several."""
    grids = [chosen_grid(setting, columns) for setting in table.settings]
    rows = [row for grid in grids for row in grid.rows]
    if not table.other_settings:
        return replace(grids[0], rows=rows)
    rows = [
        [Cell(clean(setting.setting)), *row]
        for setting, grid in zip(table.settings, grids, strict=True)
        for row in grid.rows
    ]
    return replace(grids[0], columns=[Column(SETTING), *grids[0].columns], rows=rows)


def _cost_grid(table: Table, costs: Sequence[str]) -> Grid:
    """Return the costs of all settings beside the metric."""
    title = f"{clean(table.study)}: {clean(table.metric)} and costs"
    rows = [row for setting in table.settings for row in (setting.baseline, *setting.rows)]
    rough = any(row.costs[name].rough for row in rows for name in costs)
    caption = (
        f"{title}: of the baseline, and of each variant as multiples of the baseline's"
        + ("; brackets are intervals" if any(row.costs[name].low is not None for row in rows for name in costs) else "")
        + ("; ~ is approximate, as trials shared a machine" if rough else "")
        + "."
    )
    return replace(_all_settings(table, ["variant", "mean", *costs]), title="costs", caption=caption, full_page=True)


def without_shared_count(grid: Grid) -> Grid:
    """Return the grid; if all rows have the same n, it is in the title instead of a column."""
    index = next((index for index, column in enumerate(grid.columns) if column.id == "n"), None)
    counts = {row[index].text for row in grid.rows} if index is not None else set()
    if len(counts) != 1:
        return grid
    chosen = [column.id for column in grid.columns if column.id != "n"]
    return replace(grid.select(chosen), title=f"{grid.title}{COUNT}{counts.pop()})")


def short_caption(table: Table) -> str:
    """Return a caption for a paper, in fewer than 60 words: what is compared, n, confidence, correction and margin."""
    rows = [row for setting in table.settings for row in setting.rows]
    margin = "" if table.margin is None else f" A difference within ±{table.margin:g} counts as equivalent."
    return (
        f"{table_title(table)}. Differences are variant minus baseline on the same seed (n = "
        f"{span([row.n for row in rows])}), with confidence intervals. All verdicts together {holding(rows)} with "
        f"{percent(1 - table.alpha)} confidence ({test_name(open_ended=table.open_ended)}, {table.correction}).{margin}"
    )


def table_records(table: Table) -> Iterator[dict[str, Any]]:
    """Yield the rows as plain numbers, then steps and effects with the `family` that they belong to."""
    settings = [
        ({"setting": setting_table.setting} if table.other_settings else {}, setting_table)
        for setting_table in table.settings
    ]
    for setting, setting_table in settings:
        for row in (setting_table.baseline, *setting_table.rows):
            yield {**setting, **row.to_json(table.metric)}
    for setting, setting_table in settings:
        for family in setting_table.families:
            for row in family.rows:
                aliases = {"aliases": ", or ".join(row.aliases)} if row.aliases else {}
                plain = {"variant": row.variant, "metric": table.metric, **row.claim(), **aliases}
                yield {**setting, **plain, "family": family.key}


def _family(table: Table, family: Family) -> Grid:
    setting = f", {clean(table.setting)}" if table.setting else ""
    title = f"{clean(table.study)}: {clean(family.title)}{setting}"
    return replace(family_grid(family), title=title, remarks=[("·", [clean(line) for line in family.caption])])


def _remarks(table: Table) -> list[tuple[str, list[str]]]:
    """Return the remarks of all settings, each line once."""
    lines_by_mark: dict[str, dict[str, None]] = {}
    for setting in table.settings:
        for mark, lines in table_remarks(setting):
            lines_by_mark.setdefault(mark, {}).update(dict.fromkeys(lines))
    section_lines = [clean(line) for section in table.sections for line in section.lines]
    return [(mark, [*(section_lines if mark == "-" else ()), *lines]) for mark, lines in lines_by_mark.items()]


def split_notes(table: Table) -> tuple[Table, list[Table]]:
    """Return a table with the notes that all settings share, and the tables of the settings with the other notes."""
    tables: list[Table] = list(table.settings)
    common = table
    for field in ("warnings", "notes", "caption"):
        shared = _shared_lines([getattr(setting, field) for setting in table.settings])
        common = replace(common, **{field: shared})  # type: ignore[arg-type]  # each of them is a tuple of lines
        tables = [
            replace(setting, **{field: tuple(line for line in getattr(setting, field) if line not in shared)})  # type: ignore[arg-type]  # as above
            for setting in tables
        ]
    return common, tables


def _shared_lines(lines_of_settings: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(line for line in lines_of_settings[0] if all(line in lines for lines in lines_of_settings))


def to_csv(rows: Sequence[Mapping[str, Any]], columns: Columns = None) -> str:
    """Return rows as CSV with these columns or all; unknown values are empty, and texts are never formulas."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    if columns is not None:
        refuse_unknown_columns(columns, heads)
        heads = list(dict.fromkeys(columns))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([[_cell(row.get(head)) for head in heads] for row in rows])
    return file.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return "" if value is None else value
    text = clean(value)
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else text
