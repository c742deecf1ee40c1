"""What is kept of a study beside its file: its table with where and when it ran, and a line for each trial."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import paribus
from paribus.analysis.table import Table
from paribus.errors import join_names
from paribus.planning.api import PlannedStudy
from paribus.report.markdown import code, escaped, markdown
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
    """Writes RESULTS.md and records.jsonl into a folder; `about` says in a sentence or two what the study asks."""
    trials = [(trial, planned.store.record(trial.identity)) for trial in planned.replan().plan.trials]
    kept = [(trial, record) for trial, record in trials if record is not None]
    text = "\n".join(_lines(table, kept, len(trials), about))
    records = "".join(f"{json.dumps(record_line(trial, record), sort_keys=True)}\n" for trial, record in kept)
    make_folder(folder, files=files)
    for name, content in ((RESULTS, text), (RECORDS, records)):
        write_bytes(folder / name, content.encode(), files=files)
    return folder / RESULTS, folder / RECORDS


def record_line(trial: Trial, record: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a record: which trial it is, what came of it, and where it ran."""
    result, provenance = record["result"], record["provenance"]
    named = trial.document()
    del named["spec"]  # the study's file says it
    ran = {key: provenance[key] for key in ("training_seconds", "contended", "peak_bytes", "machine", "versions")}
    return {**named, "result": {key: result[key] for key in KEPT if key in result}, "provenance": ran}


def leading_comment(path: Path) -> str:
    """The comment that a file begins with, as a paragraph."""
    said = []
    for text in path.read_text(encoding="utf-8").splitlines():
        if not text.startswith("#"):
            break
        said.append(text.lstrip("# ").rstrip())
    return " ".join(said)


def _lines(table: Table, kept: Kept, planned: int, about: str) -> Iterator[str]:
    yield f"# {escaped(table.study)}"
    yield ""
    if about:
        yield about
        yield ""
    yield markdown(table).rstrip()
    yield ""
    yield "## Where this is from"
    yield ""
    for name, told in _origin(kept, planned):
        yield f"- {name}: {told}"
    yield ""
    command = code(f"paribus compare {table.study} --results FOLDER")
    yield f"Written by {command}: what was found, whatever it is. Times are what these trials"
    yield "took beside all else that the machine did, and no benchmark. What is kept of each trial"
    yield f"is a line of [{RECORDS}]({RECORDS}); the study is [study.yaml](study.yaml)."
    yield ""


def _origin(kept: Kept, planned: int) -> Iterator[tuple[str, str]]:
    ran: Sequence[Mapping[str, Any]] = [record["provenance"] for _, record in kept]
    seconds = sum(each["training_seconds"] for each in ran)
    yield "trials", f"{len(kept)} of {planned}, {seconds / 60:,.0f} minutes of training in all"
    if not ran:
        return
    first, last = (datetime.fromtimestamp(edge(each["ended"] for each in ran), UTC).date() for edge in (min, max))
    yield "date", str(last) if first == last else f"{first} to {last}"
    if commit := git_commit():
        yield "commit", commit
    yield "machine", join_names(_distinct(_machine(each["machine"]) for each in ran))
    versions = _distinct(", ".join(f"{name} {found}" for name, found in each["versions"].items()) for each in ran)
    yield "versions", " · ".join(versions)


def _machine(machine: Mapping[str, str]) -> str:
    threads = machine["threads"]
    return escaped(f"{machine['name']} ({machine['device']}, {threads} thread{'s' * (threads != '1')} a trial)")


def _distinct(texts: Iterator[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def git_commit() -> str:
    """The commit of the checkout that paribus runs from; nothing, where it was installed from a wheel."""
    git = shutil.which("git")
    here = str(Path(paribus.__file__).resolve().parent)
    found = []
    for asked in ("ls-files --error-unmatch __init__.py", "rev-parse HEAD", "status --porcelain --untracked-files=no"):
        ran = git and subprocess.run([git, "-C", here, *asked.split()], capture_output=True, text=True, check=False)
        if not ran or ran.returncode:
            return ""
        found.append(ran.stdout.strip())
    return f"`{found[1][:12]}`{', with changes' if found[2] else ''}"
