"""How far the reading of a corpus is, told on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final, Self, TextIO, final

AFTER: Final = 1.0  # seconds before anything is said: most corpora are read by then
OFTEN: Final = 0.1  # seconds between two states of a bar
SELDOM: Final = 10.0  # seconds between two lines, where stderr is a file
WIDTH: Final = 24

_SAID: Final = {"tokenizer": "training the tokenizer", "train": "encoding train", "val": "encoding val"}


@final
class Bar:
    """A line that is written over on a terminal, and lines from time to time elsewhere. It has no thread."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._next = time.monotonic() + (AFTER if self._live else SELDOM)
        self._total = 0  # documents of the training split, known once they were all read
        self._reading = ""
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live and self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def __call__(self, what: str, done: int) -> None:
        """`done` documents of `what` were read: tokenizer, train or val."""
        if what == "tokenizer":
            self._total = max(self._total, done)
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + (OFTEN if self._live else SELDOM)
        self._shown = True
        text = self._text(what, done)
        self._stream.write(f"\r\x1b[K{text}" if self._live else f"{text}\n")
        self._stream.flush()

    def _text(self, what: str, done: int) -> str:
        said = _SAID.get(what, what)
        if what != "train" or not self._total:
            return f"{said}: {done:,} documents"
        full = min(WIDTH, WIDTH * done // self._total)
        return f"{said}: [{'#' * full}{'.' * (WIDTH - full)}] {done:,} of {self._total:,} documents"
