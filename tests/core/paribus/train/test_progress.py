"""A bar: silent where there is nothing to wait for, one line on a terminal, lines in a file."""

import io
import time

import pytest

from paribus.train.progress import Bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_on_a_terminal_a_line_is_written_over_and_goes(clock: list[float]) -> None:
    stream = Terminal()
    with Bar(stream) as bar:
        bar("tokenizer", 4096)
        assert stream.getvalue() == ""
        clock[0] = 1.5
        bar("tokenizer", 8192)
        bar("train", 512)
        clock[0] = 1.7
        bar("train", 2048)
        clock[0] = 1.9
        bar("val", 256)
    assert stream.getvalue().split("\r\x1b[K")[1:] == [
        "training the tokenizer: 8,192 documents",
        "encoding train: [######..................] 2,048 of 8,192 documents",
        "encoding val: 256 documents",
        "",
    ]


def test_in_a_file_there_is_a_line_now_and_then(clock: list[float]) -> None:
    stream = io.StringIO()
    with Bar(stream) as bar:
        for second in range(0, 40, 2):
            clock[0] = float(second)
            bar("train", second * 100)
    assert stream.getvalue().splitlines() == [f"encoding train: {count:,} documents" for count in (1000, 2000, 3000)]


def test_what_is_quick_is_not_told(clock: list[float]) -> None:
    stream = Terminal()
    with Bar(stream) as bar:
        bar("train", 100)
    assert stream.getvalue() == ""
