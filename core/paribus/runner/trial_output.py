"""A trial's log, of which the beginning and the end are kept: a plugin that prints 1 GB fills no disk.

How far a trial is: its process adds lines to a file, and the supervisor reads what was added.

Nothing depends on it: a full disk costs the display its numbers, and the trial nothing.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, final

from paribus.storage.atomic import FILES, Files, append_line

LOG_BYTES: Final = 10_000_000
TAIL_BYTES: Final = 64_000  # of what is over the limit, so much of the end is kept: that is where a traceback stands
_LAST_BYTES: Final = 4_000


@final
class JobLog:
    """Adds what a process prints to a file, as long as there is room; a log that cannot be written hurts nobody."""

    def __init__(self, path: Path, most: int = LOG_BYTES, tail: int = TAIL_BYTES) -> None:
        self._descriptor: int | None = None
        self._last = b""
        self._end = b""
        self._tail = tail
        self._over = 0
        self._room = most
        with suppress(OSError):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._room = max(most - os.fstat(self._descriptor).st_size, most // 10)  # a later try has its say, too

    def write(self, data: bytes) -> None:
        self._last = (self._last + data[-_LAST_BYTES:])[-_LAST_BYTES:]
        self._put(data[: self._room])
        over = data[self._room :]
        self._room -= len(data) - len(over)
        if over:
            self._over += len(over)
            self._end = (self._end + over)[-self._tail :] if len(over) < self._tail else over[-self._tail :]

    @property
    def last_line(self) -> str:
        """The last line that is not blank."""
        lines = [line for line in self._last.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    def close(self) -> None:
        if self._over:
            left_out = self._over - len(self._end)
            self._put(f"\n… {left_out:,} bytes were left out here: a trial's log is cut at its limit …\n".encode())
            self._put(self._end)
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _put(self, data: bytes) -> None:
        if self._descriptor is not None and data:
            with suppress(OSError):  # a full disk
                os.write(self._descriptor, data)


WRITE_SECONDS: Final = 0.5  # seconds between lines
READ_BYTES: Final = 1 << 20  # read at a time


class ProgressLine(NamedTuple):
    """A line of the file: a step with its loss, or a note."""

    step: int = 0
    loss: float | None = None
    message: str = ""


@final
class ProgressWriter:
    """The trial's side."""

    def __init__(
        self,
        path: Path,
        steps: int | None,
        listen: Callable[[ProgressLine], None] = lambda told: None,
        *,
        files: Files = FILES,
    ) -> None:
        """`steps`: the trial's last step; None for a trial that ends after a time. `listen` receives each line."""
        self._path = path
        self._steps = steps
        self._listen = listen
        self._files = files
        self._last = -math.inf

    def write_step(self, step: int, loss: float) -> None:
        """Called every step; writes now and then, and at the end."""
        now = time.monotonic()
        if now - self._last >= WRITE_SECONDS or (self._steps is not None and step >= self._steps):
            self._last = now
            self._tell(ProgressLine(step, loss if math.isfinite(loss) else None))

    def write_message(self, text: str) -> None:
        self._tell(ProgressLine(message=text))

    def _tell(self, told: ProgressLine) -> None:
        line = {"message": told.message} if told.message else {"step": told.step, "loss": told.loss}
        append_line(self._path, json.dumps(line), files=self._files)
        self._listen(told)


@final
class ProgressReader:
    """The supervisor's side: what was added to the file since it last asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = self._size()

    def read(self) -> Iterator[ProgressLine]:
        """The new lines; one that is cut or no line of ours is passed over."""
        if self._size() <= self._at:
            return
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read(READ_BYTES)
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            try:
                told = ProgressLine(**json.loads(line))
            except (ValueError, TypeError, RecursionError):
                continue
            if isinstance(told.step, int) and isinstance(told.message, str):
                yield told

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0
