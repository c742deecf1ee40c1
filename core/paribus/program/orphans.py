"""End of a program whose trial was killed, with the processes that it has started.

The kernel kills the program itself, but not its subprocesses: the ranks of `torchrun` would train on, keep their GPUs,
and write into the folder of the next attempt. A process of this file waits for the end of the trial's, and kills those
that have the variable of this attempt in their environment. To start fast, it imports the standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, final

ATTEMPT: Final = "PARIBUS_ATTEMPT"  # variable of the processes of one attempt of a trial
ROUNDS: Final = 5  # a process that is killed may have started another one a moment before
PAUSE_SECONDS: Final = 0.1


@final
class OrphanGuard:
    """Process that kills a program and its subprocesses, unless it is released before this process ends."""

    def __init__(self, variable: str) -> None:
        """`variable` is the `NAME=value` that only the processes of the program have in their environment."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, variable],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that a signal to the process group of the trial does not reach it
        )

    def release(self) -> None:
        """Let processes live that the program has left, such as one that uploads its logs."""
        self._end(b"released")

    def kill(self) -> None:
        """Kill what is left of the program."""
        self._end(b"")

    def _end(self, message: bytes) -> None:
        with suppress(OSError):
            self._process.communicate(message)


def processes_with(variable: str) -> Iterator[int]:
    """Yield the processes that have a variable in their environment, as far as /proc lists them."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if os.fsencode(variable) in path.read_bytes().split(b"\0"):
                yield int(path.parent.name)


def main() -> None:
    """Wait for the end of standard input, and kill the processes of a trial that was not released."""
    if sys.stdin.buffer.read():
        return
    for _ in range(ROUNDS):
        processes = list(processes_with(sys.argv[1]))
        for process in processes:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        if not processes:
            return
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
