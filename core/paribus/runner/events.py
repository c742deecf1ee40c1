"""Events of a running study, and an estimate of its remaining time."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, final

from paribus.planning.rehearsal import TrialGroup, trial_group
from paribus.storage.store import State, Trial

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


MIN_PROGRESS: Final = 0.1  # of a trial; earlier, loading the data dominates its time


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
