"""What happens while trials run, for whoever shows it.

How long a study will go on, as far as the trials that ran tell: a variant may take ten times as long as another.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, final

from paribus.planning.rehearsal import TrialGroup, trial_group
from paribus.storage.store import State, Trial

Kind = Literal["rehearsed", "started", "progress", "ended", "more", "note"]


@final
@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened; `trial` is None where it concerns all of them.

    rehearsed: a variant took its first step, of `trial`'s spec; where it could not, `state` and `text` say why
    started:   the trial's process runs; `attempt` counts from 1
    progress:  `step` of `steps`, with its `loss`
    ended:     the trial came to `state`; why, if not done, is in `text`
    more:      trials that are known since, as `text` says
    note:      `text` is for the user
    """

    kind: Kind
    trial: Trial | None = None
    attempt: int = 1
    step: int = 0
    steps: int = 0
    loss: float | None = None
    state: State | None = None
    text: str = ""
    more: tuple[Trial, ...] = ()


OnEvent = Callable[[Event], None]


def unwatched(event: Event) -> None:
    """For runs that nobody watches."""


LEAST: Final = 0.1  # of a trial that must be done before its pace says anything: it begins with the data


@final
class Remaining:
    """Told of what happens, it says how many seconds are left; None while no trial has come far enough to tell.

    A trial takes what others of its variant took, or what it will take at its pace; one of a variant that nobody has
    seen run takes as long as the mean of those that were.
    """

    def __init__(self, trials: Iterable[Trial], jobs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._left = Counter(trial_group(trial) for trial in trials)  # those that run included
        self._jobs = jobs
        self._clock = clock
        self._took: dict[TrialGroup, list[float]] = defaultdict(list)
        self._began: dict[str, tuple[TrialGroup, float]] = {}
        self._share: dict[str, float] = {}

    def add(self, trials: Iterable[Trial]) -> None:
        """Trials that nobody knew of when it began."""
        self._left.update(trial_group(trial) for trial in trials)

    def take(self, event: Event) -> None:
        trial = event.trial
        if trial is None:
            return
        if event.kind == "started":
            self._began[trial.identity] = (trial_group(trial), self._clock())
            self._share.pop(trial.identity, None)  # of an earlier try
        elif event.kind == "progress" and event.steps and trial.identity in self._began:
            self._share[trial.identity] = event.step / event.steps
        elif event.kind == "ended":
            began = self._began.pop(trial.identity, None)
            self._share.pop(trial.identity, None)
            self._left[trial_group(trial)] -= 1
            if began is not None and event.state == "done":
                self._took[trial_group(trial)].append(self._clock() - began[1])

    @property
    def unseen(self) -> int:
        """How many variants are still to run of which nothing is known but that they are."""
        known = self._known()
        return sum(count > 0 and each not in known for each, count in self._left.items())

    def seconds(self) -> float | None:
        known = self._known()
        if not known:
            return None
        usual = statistics.fmean(known.values())
        running = [self._rest(identity, known, usual) for identity in self._began]
        waiting = self._left.copy()
        waiting.subtract(each for each, _ in self._began.values())
        work = sum(running) + sum(max(count, 0) * known.get(each, usual) for each, count in waiting.items())
        return max([work / self._jobs, *running])

    def _known(self) -> dict[TrialGroup, float]:
        """Seconds that a trial of a kind takes, of ended ones, or else at the pace of those that run."""
        paces: dict[TrialGroup, list[float]] = defaultdict(list)
        for identity, (whose, began) in self._began.items():
            share = self._share.get(identity, 0.0)
            if share >= LEAST:
                paces[whose].append((self._clock() - began) / share)
        return {whose: statistics.fmean(found) for whose, found in {**paces, **self._took}.items() if found}

    def _rest(self, identity: str, known: dict[TrialGroup, float], usual: float) -> float:
        whose, began = self._began[identity]
        share = self._share.get(identity, 0.0)
        passed = self._clock() - began
        if share >= LEAST:
            return passed / share - passed
        return max(known.get(whose, usual) - passed, 0.0)
