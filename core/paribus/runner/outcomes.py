"""Outcomes of trials: state and reason of an error, of the end of a process, and whether to try again."""

from __future__ import annotations

import errno
import re
import shutil
import signal
import traceback
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple, final

from paribus.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED, ParibusError, escape_unprintable
from paribus.program.run_program import ProgramFailedError
from paribus.runner.signals import STOP_SIGNALS
from paribus.slots.launcher import JobEnded
from paribus.storage.packages import package_of_file
from paribus.storage.store import LOG, State, Store, Trial

_CORE: Final = Path(__file__).parents[1]
# Exit codes of a worker besides those of `paribus.errors`, as in sysexits.h.
EXIT_MEMORY: Final = 71
EXIT_RETRY: Final = 74  # a disk or a machine failed, and may not fail the next time
EXIT_LOCKED: Final = 75  # another process runs this trial
INTERRUPTED: Final = "it was stopped; run the study again to continue it"

TRANSIENT_ERRORS: Final = frozenset(
    getattr(errno, name)
    for name in ("EIO", "ENOSPC", "EDQUOT", "EMFILE", "ENFILE", "ESTALE", "EAGAIN", "ETIMEDOUT", "EREMOTEIO")
    if hasattr(errno, name)
)
MAX_LENGTH: Final = 600  # of a reason
ADVICE: Final = "make `data.batch`, `dims.length` or `dims.width` smaller, or run fewer trials at once (--jobs)"

_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory", re.I
)
_SIZE: Final = re.compile(r"allocate\D{0,20}(\d[\d.,]* ?(?:bytes|[KMGT]i?B))", re.I)


class Failure(NamedTuple):
    """End of a trial that raised an error."""

    state: State
    reason: str  # one line
    frame: str  # last frame outside of torch and Lightning
    code: int  # exit code of its process


def describe_failure(error: BaseException) -> Failure:
    """Return state, reason and exit code of an error."""
    if isinstance(error, ProgramFailedError):
        code = EXIT_MEMORY if error.out_of_memory else EXIT_FAILED
        return Failure("out-of-memory" if error.out_of_memory else "failed", program_reason(error), "", code)
    frame = last_frame(error)
    causes = list(_causes(error))
    if memory := next((cause for cause in causes if _is_out_of_memory(cause)), None):
        return Failure("out-of-memory", f"out of memory{_requested_size(memory)}: {ADVICE}", frame, EXIT_MEMORY)
    if any(isinstance(cause, OSError) and cause.errno in TRANSIENT_ERRORS for cause in causes):
        return Failure("failed", one_line(error), frame, EXIT_RETRY)
    code = error.exit_code if isinstance(error, ParibusError) else EXIT_FAILED
    place = f" ({frame})" if frame and not isinstance(error, ParibusError) else ""
    return Failure("failed", one_line(error) + escape_unprintable(place), frame, code)


def program_reason(error: ProgramFailedError) -> str:
    """Return how a program ended, in one line."""
    problem = error.problems[0]
    place = f"{problem.location}: " if problem.location else ""
    text = escape_unprintable("; ".join(filter(None, (f"{place}{problem.message}", problem.hint or problem.valid))))
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}…"


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line; all problems of a `ParibusError`."""
    if isinstance(error, ParibusError):
        text = "; ".join(str(problem) for problem in error.problems)
    else:
        text = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}".removesuffix(": ")
    text = escape_unprintable(text.replace("\n", " "))
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}…"


def last_frame(error: BaseException) -> str:
    """Return the frame to look at: `mine.py:12, in forward`.

    It is the last one of a component that the engine calls, or else the last one outside of torch and Lightning.
    """
    frames = traceback.extract_tb(error.__traceback__)
    called = dropwhile(lambda frame: not PurePath(frame.filename).is_relative_to(_CORE), frames)
    component_frames = [frame for frame in called if package_of_file(frame.filename) is None]
    own_frames = [frame for frame in frames if not {"torch", "lightning"} & set(PurePath(frame.filename).parts)]
    last = next(iter((component_frames or own_frames or frames)[-1:]), None)
    return f"{last.filename}:{last.lineno}, in {last.name}" if last else ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # of torch, without its import
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None


def _requested_size(error: BaseException) -> str:
    match = _SIZE.search(str(error))
    return f" when {match[1]} more were requested" if match else ""


class Outcome(NamedTuple):
    """State of a trial without a record, and whether another attempt may succeed."""

    state: State
    reason: str
    may_retry: bool = False


@final
class CommonFailure:
    """Whether the first trials of all variants, two or more, have failed for one and the same reason."""

    def __init__(self, variants: Iterable[Hashable]) -> None:
        self._unseen = set(variants)
        self._are_several = len(self._unseen) > 1
        self._reasons: set[str] = set()

    def add(self, variant: Hashable, outcome: Outcome | None) -> str:
        """Add the end of a trial, None with a record; return the reason when it is that of every variant."""
        self._unseen.discard(variant)
        self._reasons.add(outcome.reason if outcome is not None and outcome.state == "failed" else "")
        is_common = self._are_several and not self._unseen and len(self._reasons) == 1
        return min(self._reasons) if is_common else ""


def trial_outcome(
    ended: JobEnded,
    failure: Mapping[str, Any] | None,
    timeout: float | None = None,
    *,
    is_ending: bool = False,
    resumes: bool = True,
) -> Outcome:
    """Return the outcome of a trial from the end of its process and the failure that it wrote.

    `timeout`: seconds after which the scheduler stopped it. `is_ending`: the scheduler stops all trials, so that a
    signal was its own. `resumes`: another attempt goes on from a checkpoint.
    """
    if timeout is not None:
        again = "it goes on from its checkpoint" if resumes else "it starts from the beginning"
        return Outcome("timeout", f"it was stopped after {timeout:g} s; run again, {again}")
    if ended.code in (EXIT_INTERRUPTED, EXIT_TERMINATED) or (is_ending and ended.signal is not None):
        return Outcome("interrupted", INTERRUPTED)
    if ended.signal is not None:
        return _killed_outcome(ended)
    may_retry = ended.code in (EXIT_RETRY, EXIT_MEMORY)
    if failure is not None:
        return Outcome(failure["state"], failure["reason"], may_retry)
    if may_retry:  # the disk was too full to write the failure
        return Outcome("out-of-memory" if ended.code == EXIT_MEMORY else "failed", ended.last_line, may_retry)
    reason = f"its process ended with exit code {ended.code}, and left neither a record nor a reason"
    return Outcome("failed", reason + _last_line(ended))


def _killed_outcome(ended: JobEnded) -> Outcome:
    number = signal.Signals(ended.signal or 0)
    if number in STOP_SIGNALS:
        return Outcome("interrupted", f"{number.name} stopped it before it started; run the study again to start it")
    cause = ", likely because the machine was out of memory" if number == signal.SIGKILL else ""
    reason = f"its process was ended by signal {number} ({number.name}){cause}{_last_line(ended)}"
    return Outcome("failed", reason, may_retry=True)


def _last_line(ended: JobEnded) -> str:
    return f"; its last line was: {ended.last_line}" if ended.last_line else ""


def write_rehearsal_failure(trial: Trial, outcome: Outcome, store: Store, log: Path) -> None:
    """Write the failure of a variant's first step, and its log, for a trial that will not run."""
    folder = store.create_folder(trial)
    store.write_failure(trial.identity, outcome.state, outcome.reason, rehearsal=True)
    with suppress(OSError):
        shutil.copy(log, folder / LOG)
