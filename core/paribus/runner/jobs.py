"""One trial on its way through a run: waiting, and then running.

Under what trials are run.

Trials that begin from others: when they may start, and what becomes of them where there is nothing to begin from.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from paribus.planning import rehearsal
from paribus.runner.outcomes import Outcome
from paribus.runner.trial_output import ProgressReader
from paribus.runner.worker import CHECKPOINT_SECONDS, WorkerRequest
from paribus.storage.store import State, Store, Trial


@final
@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How trials are run: none of it changes what comes out."""

    jobs: int = 1  # at once
    timeout_seconds: float | None = None  # of one trial; it is then asked to stop, and later killed
    grace_seconds: float = 60.0  # from SIGTERM to SIGKILL: a checkpoint may be large
    retries: int = 1  # after a signal, a failing disk, or (once) a lack of memory; never after an exception
    rehearse: bool = True
    loggers: tuple[Mapping[str, Any], ...] = ()  # Lightning's, by name and options
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    checkpoint_steps: int | None = None  # instead, every so many steps


@final
@dataclass
class Task:
    """A trial that is to be run, or only its first step."""

    trial: Trial
    rehearsed: bool = False
    tries: int = 0

    @property
    def name(self) -> str:
        return f"{rehearsal.STUDY}-{self.trial.identity}" if self.rehearsed else self.trial.identity

    @property
    def run(self) -> Trial:
        """What its process is given."""
        return rehearsal.first_step(self.trial) if self.rehearsed else self.trial


@final
@dataclass
class Running:
    """A task that has a process, or will have one as soon as the launcher can."""

    task: Task
    tail: ProgressReader
    place: int = 0  # among those that run at once: each place has a device of its own, where there are several
    began: float | None = None
    asked: float | None = None  # when its time was over
    killed: bool = False

    def due(self, rules: RunOptions) -> int | None:
        """The signal to send it now, if it takes too long: the one that asks, and later the one that kills."""
        now = time.monotonic()
        if self.asked is None:
            most = rules.timeout_seconds
            if most is None or self.began is None or now - self.began <= most:
                return None
            self.asked = now
            return signal.SIGTERM
        if self.killed or now - self.asked <= rules.grace_seconds:
            return None
        self.killed = True
        return signal.SIGKILL


def _placed(trial: Trial, store: Store) -> Mapping[str, Any]:
    """The trial's spec, with the folder of the one that it begins from."""
    if not trial.parent_id:
        return trial.spec
    folder = str(store.folder(trial.parent_id).absolute())
    return {**trial.spec, "from": {**trial.spec["from"], "name": folder}}


def worker_request(trial: Trial, store: Store, rules: RunOptions, **more: Any) -> WorkerRequest:
    """What the process of a trial is told."""
    root = store.root.absolute()
    return WorkerRequest(
        store=str(root.parent),
        study=root.name,
        identity=trial.identity,
        spec=_placed(trial, store),
        checkpoint_seconds=rules.checkpoint_seconds,
        checkpoint_steps=rules.checkpoint_steps,
        loggers=list(rules.loggers),
        variant=trial.label.rpartition(", seed")[0],
        **more,
    )


def blocked_outcome(trial: Trial, trials: Mapping[str, Trial], store: Store) -> Outcome | None:
    """What becomes of a trial that begins from one that has ended, if there is no model; None where there is one.

    A fine-tuning of what diverged has diverged, and of what failed has failed: neither is a gap in a table.
    """
    if not trial.parent_id:
        return None
    record = store.record(trial.parent_id)
    state: State = "failed"
    why = "it left neither a record nor a reason"
    if record is not None:
        state, why = record["result"]["state"], ""
        if state == "done":
            return None
    elif (failure := store.failure(trial.parent_id)) is not None:
        state, why = failure["state"], failure["why"]
    before = trials.get(trial.parent_id)
    what = f"it begins from {before.label if before else trial.parent_id}, which came to `{state}`"
    return Outcome(state, f"{what}: {why}" if why else what)
