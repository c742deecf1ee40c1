"""What a trial that raised came to: a state, a sentence, and whether another try may end differently.

What the end of a trial's process means for the trial, where it left no record.
"""

from __future__ import annotations

import errno
import re
import shutil
import signal
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

from paribus.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED, ParibusError, escape_unprintable
from paribus.runner.signals import STOP_SIGNALS
from paribus.slots.launcher import JobEnded
from paribus.storage.store import LOG, State, Store, Trial

# What a trial's process ends with, besides the exit codes of `paribus.errors`; the names are those of sysexits.h.
EXIT_MEMORY: Final = 71
EXIT_RETRY: Final = 74  # a disk or a machine was at fault, and may not be the next time
EXIT_LOCKED: Final = 75  # another process runs this trial

TRANSIENT_ERRORS: Final = frozenset(
    getattr(errno, name)
    for name in ("EIO", "ENOSPC", "EDQUOT", "EMFILE", "ENFILE", "ESTALE", "EAGAIN", "ETIMEDOUT", "EREMOTEIO")
    if hasattr(errno, name)
)
MAX_LENGTH: Final = 600
ADVICE: Final = "make `data.batch`, `dims.length` or `dims.width` smaller, or run fewer trials at once (--jobs)"

_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory", re.I
)
_SIZE: Final = re.compile(r"allocate\D{0,20}(\d[\d.,]* ?(?:bytes|[KMGT]i?B))", re.I)


class Failure(NamedTuple):
    """How a trial ended that raised."""

    state: State
    reason: str  # one line
    frame: str  # the last one that is neither torch's nor Lightning's
    code: int  # what its process ends with


def describe_failure(error: BaseException) -> Failure:
    """What to tell of an error, and what to do about it."""
    frame = last_frame(error)
    causes = list(_causes(error))
    if memory := next((each for each in causes if _out_of_memory(each)), None):
        return Failure("out-of-memory", f"out of memory{_size(memory)}: {ADVICE}", frame, EXIT_MEMORY)
    if any(isinstance(each, OSError) and each.errno in TRANSIENT_ERRORS for each in causes):
        return Failure("failed", one_line(error), frame, EXIT_RETRY)
    code = error.exit_code if isinstance(error, ParibusError) else EXIT_FAILED
    place = f" ({frame})" if frame and not isinstance(error, ParibusError) else ""
    return Failure("failed", one_line(error) + escape_unprintable(place), frame, code)


def one_line(error: BaseException) -> str:
    """An error's words on one line; of a mistake that its reader can mend, all problems."""
    if isinstance(error, ParibusError):
        text = "; ".join(str(problem) for problem in error.problems)
    else:
        text = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}".removesuffix(": ")
    text = escape_unprintable(text.replace("\n", " "))
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}…"


def last_frame(error: BaseException) -> str:
    """`mine.py:12, in forward`: where to begin looking."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [each for each in frames if not {"torch", "lightning"} & set(PurePath(each.filename).parts)]
    last = next(iter((ours or frames)[-1:]), None)
    return f"{last.filename}:{last.lineno}, in {last.name}" if last else ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, without torch
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None


def _size(error: BaseException) -> str:
    found = _SIZE.search(str(error))
    return f" when {found[1]} more were asked for" if found else ""


_INTERRUPTED: Final = (EXIT_INTERRUPTED, EXIT_TERMINATED)


class Outcome(NamedTuple):
    """A state that is no record's, and whether another try may end differently."""

    state: State
    reason: str
    may_retry: bool = False


def trial_outcome(
    ended: JobEnded, failure: Mapping[str, Any] | None, overtime: float | None = None, *, ours: bool = False
) -> Outcome:
    """`failure` is what the trial itself wrote down; `overtime` the seconds after which it was stopped, if it was.

    `ours`: the supervisor is ending everything, so that a signal was its own.
    """
    if overtime is not None:
        return Outcome("timeout", f"it was stopped after {overtime:g} s; run again, it goes on from its checkpoint")
    if ended.code in _INTERRUPTED or (ours and ended.signal is not None):
        return Outcome("interrupted", "it was asked to stop; it goes on when it is run again")
    if ended.signal is not None:
        return _killed(ended)
    again = ended.code in (EXIT_RETRY, EXIT_MEMORY)
    if failure is not None:
        return Outcome(failure["state"], failure["why"], again)
    if again:  # the disk was too full to write down why
        return Outcome("out-of-memory" if ended.code == EXIT_MEMORY else "failed", ended.last_line, again)
    why = f"its process ended with exit code {ended.code}, and neither left a record nor gave a reason"
    return Outcome("failed", why + _last(ended))


def _killed(ended: JobEnded) -> Outcome:
    number = signal.Signals(ended.signal or 0)
    if number in STOP_SIGNALS:
        return Outcome("interrupted", f"{number.name} ended it before it had begun; it goes on when it is run again")
    likely = ", likely because the machine was out of memory" if number == signal.SIGKILL else ""
    return Outcome("failed", f"its process was ended by signal {number} ({number.name}){likely}" + _last(ended), True)


def _last(ended: JobEnded) -> str:
    return f"; its last line was: {ended.last_line}" if ended.last_line else ""


def fail_rehearsal(trial: Trial, outcome: Outcome, store: Store, log: Path) -> None:
    """Writes down for a trial that its variant failed in rehearsal, and what was printed there."""
    folder = store.create_folder(trial)
    store.write_failure(trial.identity, outcome.state, outcome.reason, rehearsal=True)
    with suppress(OSError):
        shutil.copy(log, folder / LOG)
