"""Signals: requests to stop, with a checkpoint or at once."""

from __future__ import annotations

import signal
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


@final
class StopRequest:
    """Request to stop: the first one with a checkpoint, a second one at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.at_once = False
        self.is_polled = False  # whether the process polls regularly
        self._request_time = 0.0
        self._reinstall: Callable[[], None] | None = None

    def request(self, number: int) -> None:
        if self.signal is None:
            self.signal = number
            self._request_time = time.monotonic()
        elif time.monotonic() - self._request_time > ECHO_SECONDS:
            self.at_once = True

    @property
    def is_requested(self) -> bool:
        return self.signal is not None

    def poll(self) -> bool:
        """Return whether a stop is requested, and reinstall signal handlers that Lightning or a plugin replaced."""
        self.is_polled = True
        if self._reinstall is not None:
            self._reinstall()
        return self.is_requested

    @property
    def exit_code(self) -> int:
        return exit_code(self.signal)


def exit_code(number: int | None) -> int:
    """Return the exit code of a process that a signal stopped."""
    return EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED


@final
class InterruptedStudyError(ParibusError):
    """A signal stopped the study; its trials have written their checkpoints."""

    def __init__(self, number: int, resume: str) -> None:
        cause = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        hint = f"to go on: {resume}" if resume else "run it again to go on"
        super().__init__(Problem(code="interrupted", message=f"stopped by {cause}; nothing is lost; {hint}"))
        self.number = number
        self.resume = resume

    def __reduce__(self) -> tuple[type[InterruptedStudyError], tuple[int, str]]:  # type: ignore[override]  # its arguments are not those of ParibusError
        return type(self), (self.number, self.resume)

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # it depends on the signal
        return exit_code(self.number)


@contextmanager
def catch_signals(stop: StopRequest, on_signal: Callable[[], None] = lambda: None) -> Iterator[StopRequest]:
    """Turn signals into requests to stop, and call `on_signal`; a signal that is ignored (nohup) stays ignored.

    In any thread but the main one, this does nothing: Python delivers signals to the main thread.
    """

    def handle(number: int, frame: object) -> None:
        stop.request(number)
        on_signal()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = {
        number: handler for number in STOP_SIGNALS if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }

    def install() -> None:
        for number in previous:
            if signal.getsignal(number) is not handle:
                signal.signal(number, handle)

    try:
        install()
        stop._reinstall = install
        yield stop
    finally:
        stop._reinstall = None
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
