"""A trial's log, of which the beginning and the end are kept: a plugin that prints 1 GB fills no disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, final

LOG_BYTES: Final = 10_000_000
TAIL_BYTES: Final = 64_000  # of what is over the limit, so much of the end is kept: that is where a traceback stands
_LAST_BYTES: Final = 4_000


@final
class Log:
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
    def last(self) -> str:
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
