from __future__ import annotations

import os
from pathlib import Path

import pytest

from paribus.runner.progress import JobLog


def test_a_log_below_its_limit_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    for text in (b"one\n", b"two\n\n"):
        log = JobLog(path, limit=100, tail=10)
        log.write(text)
        log.close()
        assert log.last_line == text.decode().strip()
    assert path.read_bytes() == b"one\ntwo\n\n"


@pytest.mark.parametrize("size", [1, 7, 64, 1000], ids=str)
def test_the_beginning_and_the_end_of_a_log_are_kept(tmp_path: Path, size: int) -> None:
    path = tmp_path / "log.txt"
    text = b"".join(b"%06d\n" % number for number in range(1_000))
    log = JobLog(path, limit=140, tail=70)
    for start in range(0, len(text), size):
        log.write(text[start : start + size])
    log.close()
    content = path.read_bytes()
    assert content.startswith(text[:140])
    assert content.endswith(text[-70:])
    assert f"… {len(text) - 210:,} bytes are left out".encode() in content
    assert len(content) < 320


def test_a_later_attempt_is_logged_even_if_the_log_is_full(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"x" * 5_000)
    log = JobLog(path, limit=1_000, tail=10)
    log.write(b"y" * 90)
    log.close()
    assert path.read_bytes() == b"x" * 5_000 + b"y" * 90


def test_the_last_line_is_the_last_that_is_not_blank(tmp_path: Path) -> None:
    log = JobLog(tmp_path / "log.txt")
    assert log.last_line == ""
    for data in (b"first\nsec", b"ond\n", b"\n  \n"):
        log.write(data)
    assert log.last_line == "second"
    log.write(b"\xff\n")
    assert log.last_line == "\ufffd"


def test_a_disk_that_fails_costs_the_log_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JobLog(tmp_path / "log.txt")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    log.write(b"lost\n")
    log.close()
    assert log.last_line == "lost"
