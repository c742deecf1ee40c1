"""How a trial's process comes into the world: forked in milliseconds, or started anew in seconds."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from paribus.errors import EXIT_BUG
from paribus.studies.signals import ASKING, Stop, catching, die_with
from paribus.studies.work import caught

Work = Callable[[str, Stop], int]  # an order, and whether it is to stop: an exit code


def forked(order: str, printed: int, work: Work, *, before: Callable[[], None], others: Iterable[int]) -> int:
    """A child that does the work and prints into a pipe: its process id. `others` are files that are not its own."""
    parent = os.getpid()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)  # a wish to stop waits until the child can hear it
    try:
        pid = os.fork()
        if pid == 0:
            _live(order, printed, work, parent, before, others)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return pid


def spawned(order: str, printed: int, command: Sequence[str]) -> int:
    """A process that starts from nothing, for where a fork would be unsafe: its process id."""
    with tempfile.TemporaryFile() as file:
        file.write(order.encode())
        file.seek(0)
        ends = [(os.POSIX_SPAWN_DUP2, source, to) for source, to in ((file.fileno(), 0), (printed, 1), (printed, 2))]
        asked = [each for each in ASKING if signal.getsignal(each) is signal.SIG_IGN]
        return os.posix_spawn(command[0], list(command), os.environ, file_actions=ends, setpgroup=0, setsigdef=asked)


def why_not_fork() -> str:
    """What would make a fork unsafe: other threads, of which a child would have the locks and not the threads."""
    count = threads()
    if count == 1:
        return ""
    names = ", ".join(f"`{each.name}`" for each in threading.enumerate() if each is not threading.main_thread())
    return f"it has {count} threads" + (f" ({names})" if names else "")


def threads() -> int:
    """How many threads this process has, those that Python does not know of included, where the system tells."""
    with suppress(OSError):
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    return threading.active_count()


def _live(
    order: str, printed: int, work: Work, parent: int, before: Callable[[], None], others: Iterable[int]
) -> NoReturn:
    code = EXIT_BUG
    try:
        os.setpgid(0, 0)  # so that what it starts can be ended with it
        die_with(parent)
        before()
        _files(printed, others)
        faulthandler.enable()
        stop = Stop()
        with catching(stop, lambda: caught(stop)):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
            code = work(order, stop)
    except BaseException:
        with suppress(Exception):
            traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # what the parent wants done at its own exit is not the child's to do


def _files(printed: int, others: Iterable[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, to in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(source, to)
    for each in (nothing, printed, *others):
        with suppress(OSError):
            os.close(each)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # the zygote opened them as text
