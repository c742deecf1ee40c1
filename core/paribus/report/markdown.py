"""Markdown tables as GitHub renders them, and the files RESULTS.md and records.jsonl of a study.

RESULTS.md has the table of a study with its provenance, records.jsonl a line for each trial.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from paribus.analysis.formatting import Cell, Column, Grid, clean
from paribus.analysis.table import Columns, Table
from paribus.report import table_views
from paribus.report.provenance import TrialRun, git_commit, provenance_lines
from paribus.storage.atomic import FILES, Files, make_folder, write_bytes
from paribus.storage.store import Trial

if TYPE_CHECKING:
    # It imports numpy, which a comparison of two reports does not need.
    from paribus.planning.api import PlannedStudy

SPECIAL: Final = re.compile(r"([\\`*_<>|#~\[\]])")
RESULTS: Final = "RESULTS.md"
RECORDS: Final = "records.jsonl"
# The published keys of a record's result. The others are long and add nothing to the table: the loss of every step, the
# curve, and the digests of the certificates.
PUBLISHED_KEYS: Final = (
    "state",
    "steps",
    "tokens",
    "metrics",
    "unmeasured",
    "unigram_baseline",
    "learned_below",
    "parameters",
    "flops_per_token",
    "cache_bytes_per_token",
    "training_flops",
    "total_flops",
    "data",
    "digests",
)


def markdown(table: Table, *, heading: int = 2, columns: Columns = None) -> str:
    """Return the whole table with its certificates, warnings and captions, under a heading of this level."""
    return "\n".join([*_lines(table, heading, columns), ""])


def grid_markdown(grid: Grid) -> str:
    """Return a grid with its header lines and remarks."""
    header = (f"- {escaped(line)}" for line in grid.header)
    return "\n".join([f"## {escaped(grid.title)}", "", *header, "", *_grid_lines(grid), *_remarks(grid.remarks), ""])


def _lines(table: Table, heading: int, columns: Columns) -> Iterator[str]:
    yield f"{'#' * heading} {escaped(table_views.table_title(table))}"
    yield ""
    if table.other_settings:
        yield from _grid_lines(table_views.overview_grid(table))
        yield ""
    for section in table.sections:
        yield from (f"{'#' * (heading + 1)} {escaped(section.title)}", "")
        yield from (f"- {escaped(line)}" for line in section.lines)
        yield ""
    if not table.other_settings:
        yield from _body(table, heading + 1, columns)
        return
    common, tables = table_views.split_notes(table)
    for setting in tables:
        yield from (f"{'#' * (heading + 1)} {escaped(setting.setting)}", "")
        yield from _body(setting, heading + 2, columns)
        yield ""
    yield f"{'#' * (heading + 1)} all of them"
    yield from _remarks(table_views.table_remarks(common))


def _body(table: Table, heading: int, columns: Columns) -> Iterator[str]:
    """Yield the rows, the certificates, other families, and the remarks."""
    yield from _grid_lines(table_views.chosen_grid(table, columns))
    yield ""
    if columns is None and table_views.has_inference(table):
        yield from _grid_lines(table_views.inference_grid(table))
        yield ""
    yield from _certificates(table_views.certificate_lines(table.certificates))
    for family in table.families:
        yield from ("", f"{'#' * heading} {escaped(family.title)}", "")
        yield from _grid_lines(table_views.family_grid(family).select(columns, ignore_unknown=True))
        yield ""
        yield from _certificates(table_views.family_certificate_lines(family))
        yield from ("",) if family.certificates else ()
        yield from (f"- {escaped(line)}" for line in family.caption)
    yield from _remarks(table_views.table_remarks(table))


def _grid_lines(grid: Grid) -> Iterator[str]:
    """Yield a table with names as code and claims in bold."""
    yield _line([escaped(head.name) for head in grid.columns])
    yield _line(["--:" if head.align_right else ":--" for head in grid.columns])
    for row in grid.rows:
        yield _line([_cell(head, cell) for head, cell in zip(grid.columns, row, strict=True)])


def _cell(head: Column, cell: Cell) -> str:
    if head.wrap == "name":
        return code(cell.text, cell=True)
    text = escaped(cell.text) if head.wrap else cell.text
    return f"**{text}**" if cell.kind in table_views.CLAIMED else text


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
    """Return text as a code span; with `cell`, vertical bars are escaped."""
    cleaned = clean(text)
    cleaned = cleaned.replace("|", "\\|") if cell else cleaned
    fence = "`" * (1 + max(map(len, re.findall("`+", cleaned)), default=0))
    padding = " " if "`" in cleaned else ""
    return f"{fence}{padding}{cleaned}{padding}{fence}"


RecordedTrials = Sequence[tuple[Trial, Mapping[str, Any]]]


def write_results(
    planned: PlannedStudy, table: Table, folder: Path, about: str, files: Files = FILES
) -> tuple[Path, Path]:
    """Write RESULTS.md and records.jsonl into a folder; `about` describes the study in a sentence or two."""
    trials = [(trial, planned.store.record(trial.identity)) for trial in planned.replan().plan.trials]
    recorded = [(trial, record) for trial, record in trials if record is not None]
    text = "\n".join(_results_lines(table, recorded, len(trials), about))
    records = "".join(f"{json.dumps(record_line(trial, record), sort_keys=True)}\n" for trial, record in recorded)
    make_folder(folder, files=files)
    for name, content in ((RESULTS, text), (RECORDS, records)):
        write_bytes(folder / name, content.encode(), files=files)
    return folder / RESULTS, folder / RECORDS


def record_line(trial: Trial, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the published part of a record: the trial, its result, and where it ran."""
    result, provenance = record["result"], record["provenance"]
    document = trial.document()
    # The spec follows from the file of the study.
    del document["spec"]
    published = {key: provenance[key] for key in ("training_seconds", "contended", "peak_bytes", "machine", "versions")}
    return {
        **document,
        "result": {key: result[key] for key in PUBLISHED_KEYS if key in result},
        "provenance": published,
    }


def leading_comment(path: Path) -> str:
    """Return the comment at the start of a file, as a paragraph."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        if not text.startswith("#"):
            break
        lines.append(text.lstrip("# ").rstrip())
    return " ".join(lines)


def _results_lines(table: Table, recorded: RecordedTrials, planned_count: int, about: str) -> Iterator[str]:
    yield f"# {escaped(table.study)}"
    yield ""
    if about:
        yield about
        yield ""
    yield markdown(table).rstrip()
    yield ""
    yield "## Provenance"
    yield ""
    runs = [TrialRun(trial.code, record["provenance"]) for trial, record in recorded]
    for label, text in provenance_lines(runs, planned_count, git_commit()):
        commit, comma, changes = text.partition(",")
        yield f"- {label}: {code(commit) + comma + changes if label == 'commit' else escaped(text)}"
    yield ""
    command = code(f"paribus compare {table.study} --results FOLDER")
    yield f"Written by {command}. Training times were measured while the"
    yield "machine did other work, so they are not a benchmark. The published part of each trial"
    yield f"is a line of [{RECORDS}]({RECORDS}); the study is [study.yaml](study.yaml)."
    yield ""
