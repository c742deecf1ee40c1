from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from paribus.runner import trial_output
from paribus.runner.trial_output import ProgressLine, ProgressReader, ProgressWriter
from paribus.storage.atomic import FILES


def test_what_one_process_tells_another_reads_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_output, "WRITE_SECONDS", 0.0)
    path = tmp_path / "progress.jsonl"
    tail, telling = ProgressReader(path), ProgressWriter(path, 10)
    assert list(tail.read()) == []
    telling.write_step(1, 2.5)
    telling.write_message("a note\nof two lines")
    assert list(tail.read()) == [ProgressLine(1, 2.5), ProgressLine(message="a note\nof two lines")]
    assert list(tail.read()) == []
    telling.write_step(2, float("nan"))
    assert list(tail.read()) == [ProgressLine(2, None)]
    assert list(ProgressReader(path).read()) == []  # what an earlier try told is not told again


def test_steps_are_told_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    heard: list[ProgressLine] = []
    telling = ProgressWriter(path, 1_000, heard.append)
    for step in range(1, 1_001):
        telling.write_step(step, 1.0)
    told = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert told[0] == 1
    assert told[-1] == 1_000
    assert len(told) < 50
    assert [each.step for each in heard] == told


def test_a_trial_that_ends_after_a_time_writes_no_line_per_step(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    telling = ProgressWriter(path, None)
    for step in range(1, 1_001):
        telling.write_step(step, 1.0)
    assert len(path.read_text().splitlines()) < 50


@pytest.mark.parametrize(
    "line",
    ["", "no JSON", "[]", "3", '{"step": "x"}', '{"message": 3}', '{"other": 1}', "[" * 100_000, "\x00\xff"],
    ids=range(9),
)
def test_what_is_no_line_of_ours_is_passed_over(tmp_path: Path, line: str) -> None:
    path = tmp_path / "progress.jsonl"
    tail = ProgressReader(path)
    path.write_text(f'{line}\n{{"step": 7, "loss": 0.5}}\n{{"step": 8, "lo')
    assert list(tail.read()) == [ProgressLine(7, 0.5)]


def test_a_full_disk_costs_the_display_and_nothing_else(tmp_path: Path) -> None:
    def full(name: str) -> None:
        raise OSError(28, os.strerror(28))

    telling = ProgressWriter(tmp_path / "progress.jsonl", 1, files=FILES.with_callback(full))
    telling.write_step(1, 1.0)
    telling.write_message("lost")


def test_a_file_that_cannot_be_read_has_nothing_new(tmp_path: Path) -> None:
    tail = ProgressReader(tmp_path)  # a folder
    tail._at = -1
    assert list(tail.read()) == []
