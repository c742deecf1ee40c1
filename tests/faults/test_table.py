"""Consistency of the table of faults: an existing test covers each row."""

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.faults.reliability import page
from tests.faults.table import ELSEWHERE, FAULTS, NOT_COVERED

TESTS = Path(__file__).parents[1]
HERE = Path(__file__).parent


def held_here() -> Counter[str]:
    """Return the rows that tests in this folder cover, with the number of their marks."""
    marks = [rows for path in HERE.glob("test_*.py") for rows in re.findall(r"mark\.held\(([^)]*)\)", path.read_text())]
    rows = Counter(row for mark in marks for row in re.findall(r'"([A-E]\d+)"', mark))
    rows.update(re.findall(r'^    \(\n? *"([A-E]\d+)",', (HERE / "test_rows.py").read_text(), flags=re.M))
    return rows


@pytest.mark.parametrize("file", ELSEWHERE)
def test_every_listed_test_exists(file: str) -> None:
    tests = set(re.findall(r"^def test_(\w+)", (TESTS / file).read_text(), flags=re.M))
    assert set(ELSEWHERE[file]) - tests == set()


@pytest.mark.faults
def test_every_file_with_fault_tests_is_listed() -> None:
    files = {
        path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py") if "mark.faults" in path.read_text()
    }
    assert {file for file in files if not file.startswith("faults/")} - set(ELSEWHERE) == set()


def test_every_row_is_covered() -> None:
    elsewhere = {row for tests in ELSEWHERE.values() for rows in tests.values() for row in rows}
    all_rows = set(FAULTS)
    assert elsewhere - all_rows == set(held_here()) - all_rows == set()
    assert all_rows - elsewhere - set(held_here()) == set()


def test_the_page_has_counts_of_cases_and_figures_and_failures() -> None:
    reports = [
        ([("row", "D8"), ("kills", 20)], "passed"),
        ([("row", "D8"), ("kills", 1_000)], "passed"),
        ([("row", "D4"), ("kills", 7)], "failed"),
    ]
    text = page(reports, 90.0)
    assert "| kills | 1,020 |" in text
    assert "2 tests passed, 1 failed, 0 were skipped." in text
    assert f"| D8 | {FAULTS['D8']} | 2 | held |" in text
    assert f"| D4 | {FAULTS['D4']} | 1 | not met: 1 of its cases failed |" in text
    assert f"| E1 | {FAULTS['E1']} | 0 | not tried here |" in text
    assert all(f"| {row} | " in text for row in FAULTS)
    assert all(f"- {line}" in text for line in NOT_COVERED)


def test_rows_are_numbered_without_gaps() -> None:
    for letter in "ABCDE":
        numbers = [int(row[1:]) for row in FAULTS if row.startswith(letter)]
        assert numbers == list(range(1, len(numbers) + 1))
