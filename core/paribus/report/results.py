"""RESULTS.md and records.jsonl: the table of a study with its provenance, and a line for each trial."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from paribus.analysis.table import Table
from paribus.planning.api import PlannedStudy
from paribus.report.markdown import code, escaped, markdown
from paribus.report.provenance import TrialRun, git_commit, provenance_lines
from paribus.storage.atomic import FILES, Files, make_folder, write_bytes
from paribus.storage.store import Trial

RESULTS: Final = "RESULTS.md"
RECORDS: Final = "records.jsonl"
# Of a record's result. What is left out is long, and decides nothing that the table does not say: the loss of every
# step, the curve, and the digests that the certificates were made of.
KEPT: Final = (
    "state",
    "steps",
    "tokens",
    "metrics",
    "unmeasured",
    "frequencies",
    "parameters",
    "flops_per_token",
    "cache_bytes_per_token",
    "training_flops",
    "total_flops",
    "data",
    "digests",
)
Kept = Sequence[tuple[Trial, Mapping[str, Any]]]


def write_results(
    planned: PlannedStudy, table: Table, folder: Path, about: str, files: Files = FILES
) -> tuple[Path, Path]:
    """Write RESULTS.md and records.jsonl into a folder; `about` describes the study in a sentence or two."""
    trials = [(trial, planned.store.record(trial.identity)) for trial in planned.replan().plan.trials]
    recorded = [(trial, record) for trial, record in trials if record is not None]
    text = "\n".join(_lines(table, recorded, len(trials), about))
    records = "".join(f"{json.dumps(record_line(trial, record), sort_keys=True)}\n" for trial, record in recorded)
    make_folder(folder, files=files)
    for name, content in ((RESULTS, text), (RECORDS, records)):
        write_bytes(folder / name, content.encode(), files=files)
    return folder / RESULTS, folder / RECORDS


def record_line(trial: Trial, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a record that is published: the trial, its result, and where it ran."""
    result, provenance = record["result"], record["provenance"]
    named = trial.document()
    del named["spec"]  # the study's file says it
    ran = {key: provenance[key] for key in ("training_seconds", "contended", "peak_bytes", "machine", "versions")}
    return {**named, "result": {key: result[key] for key in KEPT if key in result}, "provenance": ran}


def leading_comment(path: Path) -> str:
    """Return the comment at the start of a file, as a paragraph."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        if not text.startswith("#"):
            break
        lines.append(text.lstrip("# ").rstrip())
    return " ".join(lines)


def _lines(table: Table, recorded: Kept, planned: int, about: str) -> Iterator[str]:
    yield f"# {escaped(table.study)}"
    yield ""
    if about:
        yield about
        yield ""
    yield markdown(table).rstrip()
    yield ""
    yield "## Where this is from"
    yield ""
    runs = [TrialRun(trial.code, record["provenance"]) for trial, record in recorded]
    for label, text in provenance_lines(runs, planned, git_commit()):
        commit, comma, changes = text.partition(",")
        yield f"- {label}: {code(commit) + comma + changes if label == 'commit' else escaped(text)}"
    yield ""
    command = code(f"paribus compare {table.study} --results FOLDER")
    yield f"Written by {command}: what was found, whatever it is. Times are what these trials"
    yield "took beside all else that the machine did, and no benchmark. What is kept of each trial"
    yield f"is a line of [{RECORDS}]({RECORDS}); the study is [study.yaml](study.yaml)."
    yield ""
