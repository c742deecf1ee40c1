"""Under what trials are run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from paribus.studies.work import CHECKPOINT_SECONDS


@final
@dataclass(frozen=True, kw_only=True)
class Rules:
    """How trials are run: none of it changes what comes out."""

    jobs: int = 1  # at once
    timeout_seconds: float | None = None  # of one trial; it is then asked to stop, and later killed
    grace_seconds: float = 60.0  # from SIGTERM to SIGKILL: a checkpoint may be large
    retries: int = 1  # after a signal, a failing disk, or (once) a lack of memory; never after an exception
    rehearse: bool = True
    loggers: tuple[Mapping[str, Any], ...] = ()  # Lightning's, by name and options
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    checkpoint_steps: int | None = None  # instead, every so many steps
