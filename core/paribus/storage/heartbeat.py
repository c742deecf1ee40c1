"""The heart of a lease: a small process that counts on in the lease's file for as long as its parent lives.

A process, and not a thread: whoever holds a lease forks, and a fork copies no thread but the locks that it holds. It is
run by the path of this file, without site or environment, so that it is there in a hundredth of a second.
"""

import os
import select
import signal
import sys
from contextlib import suppress

DIGITS = 20


def run_heartbeat(path: str, offset: int, every: float, parent: int) -> None:
    """Until the parent closes our standard input, or ends."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(each, signal.SIG_IGN)  # they are for the parent, who may yet write a checkpoint
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    count = 0
    while not select.select([sys.stdin.fileno()], [], [], every)[0] and os.getppid() == parent:
        count += 1
        with suppress(OSError):  # a server that is away for a moment; if for longer, others are right to give us up
            os.pwrite(descriptor, f"{count:0{DIGITS}d}".encode(), offset)
            os.fsync(descriptor)


if __name__ == "__main__":
    run_heartbeat(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
