"""What the end of a trial's process means for the trial, where it left no record."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from paribus.errors import EXIT_INTERRUPTED, EXIT_TERMINATED
from paribus.slots.launcher import Ended
from paribus.studies.failures import EXIT_AGAIN, EXIT_MEMORY
from paribus.studies.signals import ASKING
from paribus.studies.store import State

_INTERRUPTED: Final = (EXIT_INTERRUPTED, EXIT_TERMINATED)


class Outcome(NamedTuple):
    """A state that is no record's, and whether another try may end differently."""

    state: State
    why: str
    again: bool = False


def outcome(
    ended: Ended, failure: Mapping[str, Any] | None, overtime: float | None = None, *, ours: bool = False
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
    again = ended.code in (EXIT_AGAIN, EXIT_MEMORY)
    if failure is not None:
        return Outcome(failure["state"], failure["why"], again)
    if again:  # the disk was too full to write down why
        return Outcome("out-of-memory" if ended.code == EXIT_MEMORY else "failed", ended.last, again)
    why = f"its process ended with exit code {ended.code}, and neither left a record nor gave a reason"
    return Outcome("failed", why + _last(ended))


def _killed(ended: Ended) -> Outcome:
    number = signal.Signals(ended.signal or 0)
    if number in ASKING:
        return Outcome("interrupted", f"{number.name} ended it before it had begun; it goes on when it is run again")
    likely = ", likely because the machine was out of memory" if number == signal.SIGKILL else ""
    return Outcome("failed", f"its process was ended by signal {number} ({number.name}){likely}" + _last(ended), True)


def _last(ended: Ended) -> str:
    return f"; its last line was: {ended.last}" if ended.last else ""
