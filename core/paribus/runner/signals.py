"""Signals: the wish to stop, first with a checkpoint and then at once; and the one by which nobody is orphaned."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, final

from paribus.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, ParibusError, Problem

STOP_SIGNALS: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
)  # USR1: Slurm, when the time runs out
ECHO_SECONDS: Final = (
    0.5  # seconds: Slurm and `uv run` send one wish twice, to a process and to its parent, who passes it on
)

_PR_SET_PDEATHSIG: Final = 1


@final
class StopRequest:
    """Whether it should end: asked once, with a checkpoint; asked again, at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.at_once = False
        self.is_polled = False  # somebody looks at this from time to time
        self._asked = 0.0
        self._renew: Callable[[], None] | None = None

    def request(self, number: int) -> None:
        if self.signal is None:
            self.signal = number
            self._asked = time.monotonic()
        elif time.monotonic() - self._asked > ECHO_SECONDS:
            self.at_once = True

    @property
    def is_requested(self) -> bool:
        return self.signal is not None

    def poll(self) -> bool:
        """For whoever goes on in steps: the same answer, and whoever took the signals meanwhile has them no longer.

        Lightning does, and so may a plugin.
        """
        self.is_polled = True
        if self._renew is not None:
            self._renew()
        return self.is_requested

    @property
    def exit_code(self) -> int:
        return exit_code(self.signal)


def exit_code(number: int | None) -> int:
    """What a process ends with that was asked to stop by this signal."""
    return EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED


@final
class InterruptedStudyError(ParibusError):
    """Somebody asked the study to stop. What its trials had learned is kept."""

    def __init__(self, number: int, resume: str) -> None:
        by = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        go_on = f"to go on: {resume}" if resume else "run it again to go on"
        super().__init__(Problem(code="interrupted", message=f"stopped by {by}; nothing is lost; {go_on}"))
        self.number = number
        self.resume = resume

    def __reduce__(self) -> tuple[type[InterruptedStudyError], tuple[int, str]]:  # type: ignore[override]  # made otherwise
        return type(self), (self.number, self.resume)

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # which one depends on the signal
        return exit_code(self.number)


@contextmanager
def catch_signals(stop: StopRequest, then: Callable[[], None] = lambda: None) -> Iterator[StopRequest]:
    """While this lasts, a signal is a wish to stop, and `then` is called; one that is ignored (nohup) stays ignored.

    Python hands signals to the main thread only: in any other, nothing is caught.
    """

    def caught(number: int, frame: object) -> None:
        stop.request(number)
        then()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {each: held for each in STOP_SIGNALS if (held := signal.getsignal(each)) is not signal.SIG_IGN}

    def install() -> None:
        for each in before:
            if signal.getsignal(each) is not caught:
                signal.signal(each, caught)

    try:
        install()
        stop._renew = install
        yield stop
    finally:
        stop._renew = None
        for each, held in before.items():
            signal.signal(each, signal.SIG_DFL if held is None else held)


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process, and what it forks, when its parent ends: kill -9 leaves no orphans.

    Only Linux knows this; elsewhere a trial notices at its next step that it has another parent.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.register_at_fork(after_in_child=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(EXIT_TERMINATED)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
