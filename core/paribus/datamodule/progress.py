"""Progress of reading a corpus, on stderr: a bar in a terminal, and a line now and then in a file."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TextIO, final

if TYPE_CHECKING:
    from rich.progress import Progress

DELAY_SECONDS: Final = 1.0  # before the bar appears: most corpora are read by then
REFRESH_SECONDS: Final = 0.1
LINE_SECONDS: Final = 10.0  # between two lines in a file

_LABELS: Final = {"tokenizer": "training the tokenizer", "train": "encoding train", "val": "encoding val"}


@final
class CorpusProgress:
    """Bar that starts no thread, since processes are forked while it is shown."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._next = time.monotonic() + (DELAY_SECONDS if self._is_terminal else LINE_SECONDS)
        self._total: int | None = None  # documents of the training split, known after the tokenizer is trained
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, stage: str, done: int) -> None:
        """Show that `done` documents are read in a stage: tokenizer, train or val."""
        if stage == "tokenizer":
            self._total = max(self._total or 0, done)
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + (REFRESH_SECONDS if self._is_terminal else LINE_SECONDS)
        label = _LABELS.get(stage, stage)
        if not self._is_terminal:
            self._stream.write(f"{label}: {done:,} documents\n")
            self._stream.flush()
            return
        if self._bar is None:
            self._bar = self._start()
        (task,) = self._bar.task_ids
        self._bar.update(task, description=label, completed=done, total=self._total if stage == "train" else None)
        self._bar.refresh()

    def _start(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,} documents"))
        bar = Progress(*columns, console=Console(file=self._stream), transient=True, auto_refresh=False)
        bar.add_task("", total=None)
        bar.start()
        return bar
