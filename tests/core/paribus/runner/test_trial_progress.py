from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from paribus.runner import progress
from paribus.runner.progress import ProgressLine, ProgressReader, ProgressWriter
from paribus.storage.atomic import FILES


def test_each_line_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "WRITE_SECONDS", 0.0)
    path = tmp_path / "progress.jsonl"
    reader, writer = ProgressReader(path), ProgressWriter(path, 10)
    assert list(reader.read()) == []
    writer.write_step(1, 2.5)
    writer.write_message("a note\nof two lines")
    assert list(reader.read()) == [ProgressLine(1, 2.5), ProgressLine(message="a note\nof two lines")]
    assert list(reader.read()) == []
    writer.write_step(2, float("nan"))
    assert list(reader.read()) == [ProgressLine(2, None)]
    assert list(ProgressReader(path).read()) == []  # lines of an earlier attempt


def test_some_steps_and_the_last_are_written(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    writer = ProgressWriter(path, 1_000)
    for step in range(1, 1_001):
        writer.write_step(step, 1.0)
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps[0] == 1
    assert steps[-1] == 1_000
    assert len(steps) < 50


def test_a_trial_that_ends_after_a_time_writes_no_line_per_step(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    writer = ProgressWriter(path, None)
    for step in range(1, 1_001):
        writer.write_step(step, 1.0)
    assert len(path.read_text().splitlines()) < 50


@pytest.mark.parametrize(
    "line",
    ["", "no JSON", "[]", "3", '{"step": "x"}', '{"message": 3}', '{"other": 1}', "[" * 100_000, "\x00\xff"],
    ids=range(9),
)
def test_malformed_lines_are_skipped(tmp_path: Path, line: str) -> None:
    path = tmp_path / "progress.jsonl"
    reader = ProgressReader(path)
    path.write_text(f'{line}\n{{"step": 7, "loss": 0.5}}\n{{"step": 8, "lo')
    assert list(reader.read()) == [ProgressLine(7, 0.5)]


def test_a_full_disk_costs_the_display_and_nothing_else(tmp_path: Path) -> None:
    calls: list[str] = []

    def full(name: str) -> None:
        calls.append(name)
        raise OSError(28, os.strerror(28))

    writer = ProgressWriter(tmp_path / "progress.jsonl", 1, files=FILES.with_callback(full))
    writer.write_step(1, 1.0)
    writer.write_message("lost")
    assert calls
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_read_has_nothing_new(tmp_path: Path) -> None:
    reader = ProgressReader(tmp_path)  # a folder
    reader._position = -1
    assert list(reader.read()) == []
