"""Progress of reading a corpus: a bar in a terminal, lines in a file, and no output for short waits."""

import io
import re
import threading
import time

import pytest

from paribus.datamodule.progress import CorpusProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return now


def test_a_terminal_shows_a_progress_bar_without_a_thread(clock: list[float]) -> None:
    stream = Terminal()
    with CorpusProgress(stream) as progress:
        progress("tokenizer", 4096)
        assert stream.getvalue() == ""
        clock[0] = 1.5
        progress("tokenizer", 8192)
        progress("train", 512)
        clock[0] = 1.7
        progress("train", 2048)
        clock[0] = 1.9
        progress("val", 256)
        assert threading.active_count() == 1
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    reports = re.findall(r"(training the tokenizer|encoding train|encoding val) .*? ([\d,]+) documents", plain)
    assert list(dict.fromkeys(reports)) == [
        ("training the tokenizer", "8,192"),
        ("encoding train", "2,048"),
        ("encoding val", "256"),
    ]
    assert stream.getvalue().rstrip().endswith("\x1b[2K")


def test_a_file_has_progress_lines_at_intervals(clock: list[float]) -> None:
    stream = io.StringIO()
    with CorpusProgress(stream) as progress:
        for second in range(0, 40, 2):
            clock[0] = float(second)
            progress("train", second * 100)
    assert stream.getvalue().splitlines() == [f"encoding train: {count:,} documents" for count in (1000, 2000, 3000)]


def test_a_short_wait_shows_nothing(clock: list[float]) -> None:
    stream = Terminal()
    with CorpusProgress(stream) as progress:
        progress("train", 100)
    assert stream.getvalue() == ""
