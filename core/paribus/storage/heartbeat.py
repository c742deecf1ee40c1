"""Heartbeat of a lease: a small process that counts up in the lease's file while its parent lives.

It is a process because the owner of a lease forks, and a fork copies the locks of a thread, not the thread. It is run
by the path of this file, without site packages and environment, so that it starts within 10 ms.
"""

import os
import select
import signal
import sys
from contextlib import suppress

DIGITS = 20


def run_heartbeat(path: str, offset: int, interval: float, parent: int) -> None:
    """Count up until the parent closes the standard input, or ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # the parent handles them, and may still write a checkpoint
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    count = 0
    while not select.select([sys.stdin.fileno()], [], [], interval)[0] and os.getppid() == parent:
        count += 1
        with suppress(OSError):  # a file server is away; if for long, the lease expires
            os.pwrite(descriptor, f"{count:0{DIGITS}d}".encode(), offset)
            os.fsync(descriptor)


if __name__ == "__main__":
    run_heartbeat(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
