"""A plugin for pytest: which faults the tests of a run held, written to the page that PARIBUS_RELIABILITY_TABLE names.

`make test-faults` uses it. A test says by `held` which rows of the table it holds, and by `record_property` what it
counted; both come with its report, so that tests may run in several processes.
"""

import os
import platform
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from tests.faults.table import ELSEWHERE, FAULTS, NOT_MET

TABLE: Final = "PARIBUS_RELIABILITY_TABLE"
ROOT: Final = Path(__file__).parents[2]
FAMILIES: Final = {
    "A": "mistakes in specs and studies",
    "B": "plugins",
    "C": "data",
    "D": "trials, processes and disks",
    "E": "comparisons that would not be fair",
}

_seen: dict[str, tuple[list[tuple[str, Any]], str]] = {}
_began = time.monotonic()


@pytest.hookimpl(tryfirst=True)  # before -m and -k choose
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what holds rows, wherever it stands, and has every report say which."""
    for item in items:
        file = item.path.relative_to(ROOT / "tests").as_posix() if item.path.is_relative_to(ROOT / "tests") else ""
        name = getattr(item, "originalname", item.name).removeprefix("test_")
        rows = ELSEWHERE.get(file, {}).get(name, ())
        if rows:
            item.add_marker(pytest.mark.held(*rows))
        item.user_properties += [("row", row) for mark in item.iter_markers("held") for row in mark.args]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keeps what came of a test; with several processes, all reports come to the one that asked for them."""
    if report.when == "call" or report.outcome != "passed":
        _seen[report.nodeid] = (list(report.user_properties), report.outcome)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the page, in the process that has all reports."""
    if TABLE in os.environ and not hasattr(session.config, "workerinput"):
        Path(os.environ[TABLE]).write_text(page(_seen.values(), time.monotonic() - _began), encoding="utf-8")


def page(seen: Iterable[tuple[list[tuple[str, Any]], str]], seconds: float) -> str:
    """The page in Markdown."""
    held: dict[str, Counter[str]] = defaultdict(Counter)
    figures: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for properties, outcome in seen:
        outcomes[outcome] += 1
        for name, value in properties:
            if name == "row":
                held[value][outcome] += 1
            elif outcome == "passed":
                figures[name] += value
    lines = [
        "# What goes wrong, and what was tried",
        "",
        "Faults that are made on purpose, and what was counted while they were. Written by `make test-faults`; a row",
        "is held where every one of its cases came to the exit code, the words and the untouched files that it should.",
        "",
        f"On {datetime.now(UTC):%Y-%m-%d}, of commit {_commit()}, in {seconds / 60:.0f} minutes on {_machine()}:",
        f"{outcomes['passed']:,} tests passed, {outcomes['failed']:,} failed, {outcomes['skipped']:,} were skipped.",
        "",
        "## What was counted",
        "",
        "| | |",
        "| --- | ---: |",
        *(f"| {name} | {figures[name]:,} |" for name in sorted(figures)),
        "",
        "## Rows",
        "",
        "| family | rows | held | cases |",
        "| --- | ---: | ---: | ---: |",
    ]
    states = {row: _state(row, held[row]) for row in FAULTS}
    for letter, family in FAMILIES.items():
        rows = [row for row in FAULTS if row.startswith(letter)]
        cases = sum(held[row].total() for row in rows)
        lines.append(f"| {letter}: {family} | {len(rows)} | {sum(states[row] == 'held' for row in rows)} | {cases:,} |")
    lines += ["", "| row | fault | cases | |", "| --- | --- | ---: | --- |"]
    lines += [f"| {row} | {fault} | {held[row].total()} | {states[row]} |" for row, fault in FAULTS.items()]
    return "\n".join(lines) + "\n"


def _state(row: str, cases: Counter[str]) -> str:
    if row in NOT_MET:
        return f"not met: {NOT_MET[row]}"
    if cases["failed"]:
        return f"not met: {cases['failed']} of its cases failed"
    return "held" if cases["passed"] else "not tried here"


def _commit() -> str:
    said = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return f"`{said.stdout.strip()}`" if said.returncode == 0 else "unknown"


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores ({platform.machine()}, {platform.system()}, Python {platform.python_version()})"
