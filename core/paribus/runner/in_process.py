"""Trials in this very process, one after the other: for classes that no other process can have."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch

from paribus.planning import rehearsal
from paribus.registry import Registry
from paribus.runner.events import Event, OnEvent
from paribus.runner.jobs import RunOptions, blocked_outcome, worker_request
from paribus.runner.outcomes import EXIT_LOCKED, Outcome, fail_rehearsal, trial_outcome
from paribus.runner.signals import InterruptedStudyError, StopRequest, catch_signals
from paribus.runner.trial_output import ProgressLine
from paribus.runner.worker import run_request
from paribus.slots.launcher import JobEnded
from paribus.storage.store import LOG, Store, Trial


def run_here(
    trials: Sequence[Trial],
    store: Store,
    registry: Registry,
    on_event: OnEvent,
    *,
    rules: RunOptions = RunOptions(),
    resume: str = "",
) -> None:
    """Runs what has no record; a trial that fails is that trial's state, but one that crashes ends this process."""
    names = ", ".join(registry.local)
    text = f"{names} exist in this process only: trials run in it, one at a time, and are not resumed in another"
    on_event(Event(kind="note", text=text))
    stop = StopRequest()
    with tempfile.TemporaryDirectory(prefix="paribus-") as spare, catch_signals(stop, lambda: _at_once(stop)), _apart():
        here = _Here(store, Store(Path(spare), rehearsal.STUDY), registry, on_event, rules, stop, resume)
        here.run(trials)


@final
@dataclass(frozen=True)
class _Here:
    """One run of a study in this process."""

    store: Store
    spare: Store
    registry: Registry
    say: OnEvent
    rules: RunOptions
    stop: StopRequest
    resume: str

    def run(self, trials: Sequence[Trial]) -> None:
        pending = [trial for trial in trials if self.store.record(trial.identity) is None]
        broken: list[Trial] = []
        for trial in rehearsal.select_rehearsals(trials, pending, self.store, jobs=1) if self.rules.rehearse else ():
            came_to = self._rehearsed(trial)
            if came_to is not None:
                broken.append(trial)
                self._give_up(trial, came_to, [each for each in pending if rehearsal.is_blocked(each, trial)])
        known = {trial.identity: trial for trial in trials}
        for trial in pending:
            if not any(rehearsal.is_blocked(trial, each) for each in broken):
                came_to = blocked_outcome(trial, known, self.store)
                if came_to is None:
                    self._run(trial)
                else:
                    self._follow(trial, came_to)

    def _run(self, trial: Trial) -> None:
        """A trial, from its start to its state."""

        def listen(told: ProgressLine) -> None:
            if told.message:
                self.say(Event(kind="note", trial=trial, text=told.message))
            else:
                steps = trial.spec["trainer"].get("max_steps") or 0
                self.say(Event(kind="progress", trial=trial, step=told.step, steps=steps, loss=told.loss))

        self.store.create_folder(trial)
        most = self.rules.timeout_seconds
        until = math.inf if most is None else time.monotonic() + most
        self.say(Event(kind="started", trial=trial, text="in this process"))
        code = run_request(
            worker_request(trial, self.store, self.rules), self.registry, stop=self.stop, until=until, listen=listen
        )
        self._heed()
        record = self.store.record(trial.identity)
        if record is not None:
            self.say(Event(kind="ended", trial=trial, state=record["result"]["state"]))
        elif code == EXIT_LOCKED:
            self.say(Event(kind="note", trial=trial, text="another process runs this trial, and it is left to it"))
        else:
            overtime = most if time.monotonic() > until else None
            came_to = trial_outcome(JobEnded(trial.identity, code), self.store.failure(trial.identity), overtime)
            if overtime is not None:
                self.store.write_failure(trial.identity, came_to.state, came_to.reason)
            self.say(Event(kind="ended", trial=trial, state=came_to.state, text=came_to.reason))

    def _follow(self, trial: Trial, came_to: Outcome) -> None:
        """A trial that has nothing to begin from."""
        self.store.create_folder(trial)
        self.store.write_failure(trial.identity, came_to.state, came_to.reason)
        self.say(Event(kind="ended", trial=trial, state=came_to.state, text=came_to.reason))

    def _rehearsed(self, trial: Trial) -> Outcome | None:
        """What became of the variant's first step, unless that worked."""
        first = rehearsal.first_step(trial)
        self.spare.create_folder(first)
        order = worker_request(first, self.spare, self.rules, rehearsal=True)
        code = run_request(order, self.registry, stop=self.stop)
        self._heed()
        if self.spare.record(trial.identity) is not None:
            self.say(Event(kind="rehearsed", trial=trial))
            return None
        return trial_outcome(JobEnded(trial.identity, code), self.spare.failure(trial.identity))

    def _give_up(self, rehearsed: Trial, came_to: Outcome, trials: Sequence[Trial]) -> None:
        self.say(Event(kind="rehearsed", trial=rehearsed, state=came_to.state, text=came_to.reason))
        for each in trials:
            fail_rehearsal(each, came_to, self.store, self.spare.folder(rehearsed.identity) / LOG)
            self.say(Event(kind="ended", trial=each, state=came_to.state, text=came_to.reason))

    def _heed(self) -> None:
        if self.stop.signal is not None:
            raise InterruptedStudyError(self.stop.signal, self.resume)


def _at_once(stop: StopRequest) -> None:
    if stop.at_once or not stop.is_polled:
        raise KeyboardInterrupt


@contextmanager
def _apart() -> Iterator[None]:
    """One thread, as everywhere, and the caller's own random numbers for the caller."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
