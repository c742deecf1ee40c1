"""Provenance of a study's results: how many trials, when, on which machines, and with which versions and code."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import paribus
from paribus.analysis.formatting import MAX_NAMES
from paribus.analysis.trials import TrialEntry
from paribus.errors import join_names

CODE_DIGITS: Final = 12


@final
class TrialRun(NamedTuple):
    """One trial that has a record: the hash of its components' code, and the provenance in its record."""

    code: str
    provenance: Mapping[str, Any]


def provenance_lines(runs: Sequence[TrialRun], planned_count: int, commit: str) -> Iterator[tuple[str, str]]:
    """Yield a label and a text for each fact about the trials that ran, of the planned ones."""
    records = [run.provenance for run in runs]
    minutes = sum(record["training_seconds"] or 0.0 for record in records) / 60
    yield "trials", f"{len(runs)} of {planned_count}, {minutes:,.0f} minutes of training in all"
    if not runs:
        return
    days = sorted({datetime.fromtimestamp(record["ended"], UTC).date() for record in records})
    yield "date", str(days[0]) if len(days) == 1 else f"{days[0]} to {days[-1]}"
    if commit:
        yield "commit", commit
    yield "machine", _distinct(_machine(record["machine"]) for record in records)
    versions = (", ".join(f"{name} {version}" for name, version in record["versions"].items()) for record in records)
    yield "versions", _distinct(versions)
    yield "code of the components", _distinct(run.code[:CODE_DIGITS] for run in runs)


def entry_runs(entries: Iterable[TrialEntry]) -> tuple[list[TrialRun], int]:
    """Return the runs of these trials and of the trials that they start from, and the number of planned trials.

    A trial that several settings or variants share counts once.
    """
    trials: dict[str, TrialEntry] = {}
    for entry in entries:
        current: TrialEntry | None = entry
        while current is not None:
            trials.setdefault(current.identity, current)
            current = current.parent
    runs = [
        TrialRun(str(entry.trial.get("code") or "unknown"), entry.provenance)
        for entry in trials.values()
        if entry.record is not None
    ]
    return runs, len(trials)


def _machine(machine: Mapping[str, Any]) -> str:
    threads = str(machine.get("threads"))
    return f"{machine.get('name')} ({machine.get('device')}, {threads} thread{'s' * (threads != '1')} a trial)"


def _distinct(texts: Iterable[str]) -> str:
    return join_names(dict.fromkeys(texts), MAX_NAMES)


def git_commit() -> str:
    """Return the commit of the checkout that paribus runs from; empty if it was installed from a wheel."""
    git = shutil.which("git")
    folder = str(Path(paribus.__file__).resolve().parent)
    outputs = []
    commands = ("ls-files --error-unmatch __init__.py", "rev-parse HEAD", "status --porcelain --untracked-files=no")
    for command in commands:
        words = [str(git), "-C", folder, *command.split()]
        process = subprocess.run(words, capture_output=True, text=True, check=False) if git else None
        if process is None or process.returncode:
            return ""
        outputs.append(process.stdout.strip())
    return f"{outputs[1][:CODE_DIGITS]}{', with changes' if outputs[2] else ''}"
