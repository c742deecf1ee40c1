"""Output of a trial: its log, limited in size, and a file with its progress that the scheduler reads.

Both are for display only: a full disk affects the display and not the trial.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from paribus.storage.atomic import FILES, Files, append_line

LOG_BYTES: Final = 10_000_000
TAIL_BYTES: Final = 64_000  # kept from the end of a log over the limit: a traceback is there
LAST_LINE_BYTES: Final = 4_000
WRITE_SECONDS: Final = 0.5  # between lines of progress
READ_BYTES: Final = 1 << 20


@final
class JobLog:
    """Log of a job, of which the beginning and the end are kept; errors of writing are ignored."""

    def __init__(self, path: Path, limit: int = LOG_BYTES, tail: int = TAIL_BYTES) -> None:
        self._descriptor: int | None = None
        self._last_bytes = b""
        self._tail_bytes = b""
        self._tail = tail
        self._over = 0
        self._room = limit
        with suppress(OSError):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._room = max(limit - os.fstat(self._descriptor).st_size, limit // 10)  # some room for a later attempt

    def write(self, data: bytes) -> None:
        self._last_bytes = (self._last_bytes + data[-LAST_LINE_BYTES:])[-LAST_LINE_BYTES:]
        self._write(data[: self._room])
        over = data[self._room :]
        self._room -= len(data) - len(over)
        if over:
            self._over += len(over)
            self._tail_bytes = (
                (self._tail_bytes + over)[-self._tail :] if len(over) < self._tail else over[-self._tail :]
            )

    @property
    def last_line(self) -> str:
        """Last line that is not blank."""
        lines = [line for line in self._last_bytes.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    def close(self) -> None:
        if self._over:
            omitted = self._over - len(self._tail_bytes)
            self._write(f"\n… {omitted:,} bytes are left out here: the log is over its limit …\n".encode())
            self._write(self._tail_bytes)
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _write(self, data: bytes) -> None:
        if self._descriptor is not None and data:
            with suppress(OSError):  # a full disk
                os.write(self._descriptor, data)


class ProgressLine(NamedTuple):
    """Line of a progress file: a step with its loss, or a message."""

    step: int = 0
    loss: float | None = None
    message: str = ""


@final
class ProgressWriter:
    """Writes the progress of a trial, for the scheduler in another process."""

    def __init__(self, path: Path, steps: int | None, *, files: Files = FILES) -> None:
        """`steps`: the trial's last step; None for a trial that ends after a time."""
        self._path = path
        self._steps = steps
        self._files = files
        self._last_write = -math.inf

    def write_step(self, step: int, loss: float) -> None:
        """Write a step, at most one every `WRITE_SECONDS`, and the last one."""
        now = time.monotonic()
        if now - self._last_write >= WRITE_SECONDS or (self._steps is not None and step >= self._steps):
            self._last_write = now
            self._write({"step": step, "loss": loss if math.isfinite(loss) else None})

    def write_message(self, text: str) -> None:
        self._write({"message": text})

    def _write(self, line: Mapping[str, Any]) -> None:
        append_line(self._path, json.dumps(line), files=self._files)


@final
class ProgressReader:
    """Reads the lines that were added to a progress file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = self._size()

    def read(self) -> Iterator[ProgressLine]:
        """Yield the new lines; incomplete and malformed lines are skipped."""
        if self._size() <= self._position:
            return
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read(READ_BYTES)
        except OSError:
            return
        complete = data[: data.rfind(b"\n") + 1]
        self._position += len(complete)
        for text in complete.splitlines():
            try:
                line = ProgressLine(**json.loads(text))
            except (ValueError, TypeError, RecursionError):
                continue
            if isinstance(line.step, int) and isinstance(line.message, str):
                yield line

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0
