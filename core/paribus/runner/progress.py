"""Progress of a run: its events and remaining time, and the log and progress file of each trial.

Log and progress file are for display only: a full disk affects the display and not the trial.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, final

from paribus.planning.settings import TUNING
from paribus.storage.atomic import FILES, Files, append_line
from paribus.storage.store import State, Trial

MIN_PROGRESS: Final = 0.1  # of a trial; earlier, loading the data dominates its time
LOG_BYTES: Final = 10_000_000
TAIL_BYTES: Final = 64_000  # kept from the end of a log over the limit: a traceback is there
LAST_LINE_BYTES: Final = 4_000
WRITE_SECONDS: Final = 0.5  # between lines of progress
READ_BYTES: Final = 1 << 20
TrialGroup = tuple[str, str, str]
Kind = Literal["rehearsed", "started", "progress", "ended", "planned", "note"]


@final
@dataclass(frozen=True, kw_only=True)
class Event:
    """Event of a run; `trial` is None if it concerns the whole study.

    rehearsed: the first step of a variant was tried with the spec of `trial`; `state` and `text` are set if it failed
    started:   the process of the trial runs; `attempt` counts from 1
    progress:  the trial is at `step` of `steps`, with `loss`
    ended:     the trial ended in `state`; `text` is the reason if it is not `done`
    planned:   trials were `added` to the study or `removed` from it; `text` is the reason
    note:      `text` is a message for the user
    """

    kind: Kind
    trial: Trial | None = None
    attempt: int = 1
    step: int = 0
    steps: int = 0
    loss: float | None = None
    state: State | None = None
    text: str = ""
    added: tuple[Trial, ...] = ()
    removed: tuple[Trial, ...] = ()


OnEvent: TypeAlias = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """Do nothing; for runs without a display."""


@final
class RemainingTime:
    """Estimate of the seconds until a study ends, from its events.

    A trial takes the mean of the trials of its variant, or the time that follows from its own progress. A variant
    without any of these takes the mean of the others.
    """

    def __init__(self, trials: Iterable[Trial], jobs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pending = Counter(trial_group(trial) for trial in trials)  # running trials included
        self._jobs = jobs
        self._clock = clock
        self._durations: dict[TrialGroup, list[float]] = defaultdict(list)
        self._starts: dict[str, tuple[TrialGroup, float]] = {}
        self._progress: dict[str, float] = {}

    def on_event(self, event: Event) -> None:
        self._pending.update(trial_group(trial) for trial in event.added)
        self._pending.subtract(trial_group(trial) for trial in event.removed)
        trial = event.trial
        if trial is None:
            return
        if event.kind == "started":
            self._starts[trial.identity] = (trial_group(trial), self._clock())
            self._progress.pop(trial.identity, None)  # of an earlier attempt
        elif event.kind == "progress" and event.steps and trial.identity in self._starts:
            self._progress[trial.identity] = event.step / event.steps
        elif event.kind == "ended":
            start = self._starts.pop(trial.identity, None)
            self._progress.pop(trial.identity, None)
            self._pending[trial_group(trial)] -= 1
            if start is not None and event.state == "done":
                self._durations[trial_group(trial)].append(self._clock() - start[1])

    @property
    def unseen_variants(self) -> int:
        """Number of variants with pending trials and without an estimate of their own."""
        seconds = self._seconds_per_trial()
        return sum(count > 0 and group not in seconds for group, count in self._pending.items())

    def seconds(self) -> float | None:
        """Return the estimate; None until one trial has made enough progress."""
        seconds = self._seconds_per_trial()
        if not seconds:
            return None
        mean = statistics.fmean(seconds.values())
        running = [self._remaining_seconds(identity, seconds, mean) for identity in self._starts]
        waiting = self._pending.copy()
        waiting.subtract(group for group, _ in self._starts.values())
        total = sum(running) + sum(max(count, 0) * seconds.get(group, mean) for group, count in waiting.items())
        return max([total / self._jobs, *running])

    def _seconds_per_trial(self) -> dict[TrialGroup, float]:
        """Return the mean duration of each variant's trials, or an extrapolation of its running trials."""
        extrapolated: dict[TrialGroup, list[float]] = defaultdict(list)
        for identity, (group, start) in self._starts.items():
            progress = self._progress.get(identity, 0.0)
            if progress >= MIN_PROGRESS:
                extrapolated[group].append((self._clock() - start) / progress)
        durations = {**extrapolated, **self._durations}
        return {group: statistics.fmean(seconds) for group, seconds in durations.items() if seconds}

    def _remaining_seconds(self, identity: str, seconds: dict[TrialGroup, float], mean: float) -> float:
        group, start = self._starts[identity]
        progress = self._progress.get(identity, 0.0)
        elapsed = self._clock() - start
        if progress >= MIN_PROGRESS:
            return elapsed / progress - elapsed
        return max(seconds.get(group, mean) - elapsed, 0.0)


@final
class JobLog:
    """Log of a job, of which the beginning and the end are kept; errors of writing are ignored."""

    def __init__(self, path: Path, limit: int = LOG_BYTES, tail: int = TAIL_BYTES) -> None:
        self._descriptor: int | None = None
        self._last_bytes = b""
        self._tail_bytes = b""
        self._tail = tail
        self._over = 0
        self._room = limit
        with suppress(OSError):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._room = max(limit - os.fstat(self._descriptor).st_size, limit // 10)  # some room for a later attempt

    def write(self, data: bytes) -> None:
        self._last_bytes = (self._last_bytes + data[-LAST_LINE_BYTES:])[-LAST_LINE_BYTES:]
        self._write(data[: self._room])
        over = data[self._room :]
        self._room -= len(data) - len(over)
        if over:
            self._over += len(over)
            self._tail_bytes = (
                (self._tail_bytes + over)[-self._tail :] if len(over) < self._tail else over[-self._tail :]
            )

    @property
    def last_line(self) -> str:
        """Last line that is not blank."""
        lines = [line for line in self._last_bytes.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    def close(self) -> None:
        if self._over:
            omitted = self._over - len(self._tail_bytes)
            self._write(f"\n… {omitted:,} bytes are left out here: the log is over its limit …\n".encode())
            self._write(self._tail_bytes)
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _write(self, data: bytes) -> None:
        if self._descriptor is not None and data:
            with suppress(OSError):  # a full disk
                os.write(self._descriptor, data)


class ProgressLine(NamedTuple):
    """Line of a progress file: a step with its loss, or a message."""

    step: int = 0
    loss: float | None = None
    message: str = ""


@final
class ProgressWriter:
    """Writes the progress of a trial, for the scheduler in another process."""

    def __init__(self, path: Path, steps: int | None, *, files: Files = FILES) -> None:
        """`steps`: the trial's last step; None for a trial that ends after a time."""
        self._path = path
        self._steps = steps
        self._files = files
        self._last_write = -math.inf

    def write_step(self, step: int, loss: float) -> None:
        """Write a step, at most one every `WRITE_SECONDS`, and the last one."""
        now = time.monotonic()
        if now - self._last_write >= WRITE_SECONDS or (self._steps is not None and step >= self._steps):
            self._last_write = now
            self._write({"step": step, "loss": loss if math.isfinite(loss) else None})

    def write_message(self, text: str) -> None:
        self._write({"message": text})

    def _write(self, line: Mapping[str, Any]) -> None:
        append_line(self._path, json.dumps(line), files=self._files)


@final
class ProgressReader:
    """Reads the lines that are added to a progress file, or all of them."""

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self._path = path
        self._position = 0 if from_start else self._size()

    def read(self) -> Iterator[ProgressLine]:
        """Yield the new lines; incomplete and malformed lines are skipped."""
        if self._size() <= self._position:
            return
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read(READ_BYTES)
        except OSError:
            return
        complete = data[: data.rfind(b"\n") + 1]
        self._position += len(complete)
        for text in complete.splitlines():
            try:
                line = ProgressLine(**json.loads(text))
            except (ValueError, TypeError, RecursionError):
                continue
            if isinstance(line.step, int) and isinstance(line.message, str):
                yield line

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0


def last_step(path: Path) -> int:
    """Return the last step in a progress file; 0 if it has none."""
    reader, last = ProgressReader(path, from_start=True), 0
    while lines := [line.step for line in reader.read()]:
        last = max((last, *lines))
    return last


def trial_group(trial: Trial) -> TrialGroup:
    """Return a key that all seeds and tuning candidates of a variant share: one of them is rehearsed for all."""
    setting, tuning, _ = trial.setting.partition(f"{TUNING} ")
    return trial.variant, setting + tuning, trial.stage
