"""End of a process with its parent. Imported without torch."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

from paribus.errors import EXIT_TERMINATED

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process and its forks when the parent ends: `kill -9` leaves no orphans.

    Linux only; on other systems a trial checks its parent at every step.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.register_at_fork(after_in_child=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
    if os.getppid() != parent:  # it ended before the call of prctl
        os._exit(EXIT_TERMINATED)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
