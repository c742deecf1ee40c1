"""Pytest plugin that writes a page of covered faults to the path in PARIBUS_RELIABILITY_TABLE.

`make test-faults` uses it. The mark `held` of a test names the rows of the table that it covers, and `record_property`
its counts; both are part of its report, so tests may run in several processes.
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
from tests.core.paribus.testing.seeded_faults import newcomer_table, plugin_table, table
from tests.faults.table import ELSEWHERE, FAULTS, NOT_COVERED

from paribus.hookspecs import SLOTS

TABLE: Final = "PARIBUS_RELIABILITY_TABLE"
ROOT: Final = Path(__file__).parents[2]
FAMILIES: Final = {
    "A": "errors in specs and studies",
    "B": "plugins",
    "C": "data",
    "D": "trials, processes and disks",
    "E": "unfair comparisons",
}

_reports: dict[str, tuple[list[tuple[str, Any]], str]] = {}
_start = time.monotonic()


@pytest.hookimpl(tryfirst=True)  # before the selection by -m and -k
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that cover rows, and add the rows to their reports."""
    for item in items:
        file = item.path.relative_to(ROOT / "tests").as_posix() if item.path.is_relative_to(ROOT / "tests") else ""
        name = getattr(item, "originalname", item.name).removeprefix("test_")
        rows = ELSEWHERE.get(file, {}).get(name, ())
        if rows:
            item.add_marker(pytest.mark.held(*rows))
        item.user_properties += [("row", row) for mark in item.iter_markers("held") for row in mark.args]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Save the outcome of a test; with several processes, the main process receives all reports."""
    if report.when == "call" or report.outcome != "passed":
        _reports[report.nodeid] = (list(report.user_properties), report.outcome)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the page, in the main process."""
    if TABLE in os.environ and not hasattr(session.config, "workerinput"):
        Path(os.environ[TABLE]).write_text(page(_reports.values(), time.monotonic() - _start), encoding="utf-8")


def page(reports: Iterable[tuple[list[tuple[str, Any]], str]], seconds: float) -> str:
    """Return the page in Markdown."""
    cases_by_row: dict[str, Counter[str]] = defaultdict(Counter)
    figures: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for properties, outcome in reports:
        outcomes[outcome] += 1
        for name, value in properties:
            if name == "row":
                cases_by_row[value][outcome] += 1
            elif outcome == "passed":
                figures[name] += value
    lines = [
        "# Tested faults",
        "",
        "Faults that tests cause on purpose, with counts. Written by `make test-faults`; a row is held if each of its",
        "cases had the expected exit code, message and unchanged files. A row that is not held fails the command, so",
        "it is mended before the page is committed. Faults that no test causes are listed [below](#not-covered).",
        "",
        f"On {datetime.now(UTC):%Y-%m-%d}, of commit {_commit()}, in {seconds / 60:.0f} minutes on {_machine()}:",
        f"{outcomes['passed']:,} tests passed, {outcomes['failed']:,} failed, {outcomes['skipped']:,} were skipped.",
        "",
        "## Counts",
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
    states = {row: _state(cases_by_row[row]) for row in FAULTS}
    for letter, family in FAMILIES.items():
        rows = [row for row in FAULTS if row.startswith(letter)]
        cases = sum(cases_by_row[row].total() for row in rows)
        lines.append(f"| {letter}: {family} | {len(rows)} | {sum(states[row] == 'held' for row in rows)} | {cases:,} |")
    lines += ["", "| row | fault | cases | |", "| --- | --- | ---: | --- |"]
    lines += [f"| {row} | {fault} | {cases_by_row[row].total()} | {states[row]} |" for row, fault in FAULTS.items()]
    lines += ["", "## Not covered", "", *(f"- {line}" for line in NOT_COVERED)]
    lines += ["", *fault_lines()]
    return "\n".join(lines) + "\n"


def fault_lines() -> list[str]:
    """Return the part of the page on seeded faults, which no run changes, as Markdown."""
    return [
        "## Faults in components",
        "",
        "Faults seeded in the source of components, and found by a check of `paribus conform`. `make slow` tries each.",
        "Others, who had not read the checks, wrote those of the last columns. The checks of that day found 42 of",
        "their 172 faults in data and training, and 67 of the 155 in models measured; then checks were added.",
        "",
        *table(SLOTS),
        "",
        "## Faults in plugins of a newcomer",
        "",
        "Someone who had read the guide on plugins, and neither the kit nor the code, wrote a plugin for each of six",
        "slots and planted subtle faults in them. Without faults, the plugins conform.",
        "",
        *newcomer_table(),
        "",
        "## Mistakes in plugins of other authors",
        "",
        "Two authors who had read the guide and the contracts of the slots, and neither the kit nor its tests, wrote",
        "36 plugins, with three to seven honest mistakes in each. The kit of that day rejected nine of the plugins",
        "without a mistake; seven of these were errors of the kit, which are mended. The other two are not counted: an",
        "option that has no effect in two layers, and one that is named `std` and has another meaning. That kit found",
        "at most 110 of 170; checks were added since, so the figure does not hold for the next author.",
        "",
        *plugin_table(),
        "",
        "## Mistakes of an author with references",
        "",
        "A third author, who had read the guide and the contracts only, wrote 12 plugins, each with a reference, and",
        "59 honest mistakes in them. These were measured before anything was changed for them. The kit accepted the",
        "12 plugins without a mistake; before, it had found two errors of the author, and mistaken one option.",
        "The checks alone found 25 of the 59 mistakes, and with the author's references 52: most were other formulas.",
        "Not found: positions in bfloat16 and squares in float16; another choice of groups; a loss that is a sum over",
        "tokens (a check finds it since); the first token of a text that reads its last one; predictions across",
        "documents in a measure; and a probability of exactly 1.",
    ]


def _state(cases: Counter[str]) -> str:
    if cases["failed"]:
        return f"not met: {cases['failed']} of its cases failed"
    return "held" if cases["passed"] else "not tried here"


def _commit() -> str:
    process = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return f"`{process.stdout.strip()}`" if process.returncode == 0 else "unknown"


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores ({platform.machine()}, {platform.system()}, Python {platform.python_version()})"
