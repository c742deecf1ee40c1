"""Jobs of a run: its options, rehearsals, waiting and running trials, trials of other runners, requests for workers.

A rehearsal is one step of a variant before the first long trial, so that errors show within seconds. That of a program
is a whole trial after the study, which shows whether equal trials have equal values.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from paribus.assembly.components import make
from paribus.datamodule.worker_pool import cores
from paribus.errors import Problem
from paribus.planning.api import PlannedStudy
from paribus.planning.plan import first_step
from paribus.registry import LazyRegistry
from paribus.runner.outcomes import Outcome
from paribus.runner.progress import ProgressReader, TrialGroup, trial_group
from paribus.runner.worker import WorkerRequest, devices_per_trial, gpu_count, uses_accelerator
from paribus.slots.launcher import Launcher
from paribus.specs.program_spec import is_program
from paribus.storage.lease import LeaseMonitor
from paribus.storage.saved_model import RECORD
from paribus.storage.store import CHECKPOINTS, State, Store, Trial
from paribus.train.trial_options import TrialOptions

REHEARSAL_STUDY: Final = "rehearsal"
LOCKED_SECONDS: Final = 5.0  # wait for trials of other runners, once nothing else is left to run


@final
@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How the trials of a study are run; none of these options changes a result."""

    jobs: int = 1  # trials at a time
    timeout_seconds: float | None = None  # of one trial; then it gets SIGTERM, and later SIGKILL
    grace_seconds: float = 60.0  # from SIGTERM to SIGKILL: a checkpoint may be large
    retries: int = 1  # after a signal, a disk error, or (once) a lack of memory; never after an exception
    rehearse: bool = True  # try the first step of each variant before the first trial
    repeat: bool = False  # run the trials of a program again, and compare them with their records
    trial: TrialOptions = TrialOptions()


@final
@dataclass
class Task:
    """Trial that is to run, or its rehearsal: the first step alone, or a program again."""

    trial: Trial
    is_rehearsal: bool = False
    other_environment: bool = False  # as in `Job`
    is_beside: bool = False  # whether it takes no job slot, and no trial waits for it
    attempts: int = 0

    @property
    def name(self) -> str:
        return f"{REHEARSAL_STUDY}-{self.trial.identity}" if self.is_rehearsal else self.trial.identity

    @property
    def trial_to_run(self) -> Trial:
        return first_step(self.trial) if self.is_rehearsal and not is_program(self.trial.spec) else self.trial


@final
@dataclass
class RunningTask:
    """Task that was given to the launcher."""

    task: Task
    progress: ProgressReader
    slot: int = 0  # index among the trials that run at a time; selects the GPU
    started: float | None = None  # when its process started
    timed_out: float | None = None  # when it got SIGTERM
    killed: bool = False

    def timeout_signal(self, options: RunOptions) -> int | None:
        """Return the signal to send now, if any: SIGTERM after the timeout, SIGKILL after the grace period."""
        now = time.monotonic()
        if self.timed_out is None:
            limit = options.timeout_seconds
            if limit is None or self.started is None or now - self.started <= limit:
                return None
            self.timed_out = now
            return signal.SIGTERM
        if self.killed or now - self.timed_out <= options.grace_seconds:
            return None
        self.killed = True
        return signal.SIGKILL


@final
class PeerRunners:
    """Trials of this store that other processes run."""

    def __init__(self, store: Store, monitor: LeaseMonitor) -> None:
        self.store = store
        self.monitor = monitor
        self.expired_tokens: dict[str, str] = {}  # identity -> last token of a remote runner that died

    def runs_remotely(self, trial: Trial) -> bool:
        """Return whether another machine runs the trial, so that a process on this one would end at once."""
        return not self.is_free(trial) and self.store.lock(trial.identity).is_remote()

    def is_free(self, trial: Trial) -> bool:
        """Return whether no process runs the trial, or only one whose lease expired."""
        lock = self.store.lock(trial.identity)
        if lock.is_free():
            self.expired_tokens.pop(trial.identity, None)
            return True
        if lock.is_remote():
            state, token = self.monitor.judge(lock.lease)
            if state == "expired":
                self.expired_tokens[trial.identity] = token
                return True
        return False

    def is_alive(self, trial: Trial) -> bool:
        """Return whether the process that runs the trial has shown that it is alive."""
        lock = self.store.lock(trial.identity)
        return not lock.is_remote() or self.monitor.judge(lock.lease)[0] == "alive"

    def locked_problem(self, trial: Trial) -> Problem:
        lock = self.store.lock(trial.identity)
        message = f"trial {trial.label} is run by {lock.owner() or 'another process'}"
        return Problem(code="locked", location=str(lock.path), message=message, hint="wait for it, or end that process")


def worker_request(trial: Trial, store: Store, options: TrialOptions, **fields: Any) -> WorkerRequest:
    """Return the request for a worker to run a trial; a parent trial is named by its folder."""
    root = store.root.absolute()
    spec = trial.spec
    if trial.parent_id:
        spec = {**spec, "from": {**spec["from"], "name": str(store.folder(trial.parent_id).absolute())}}
    return WorkerRequest(
        store=str(root.parent),
        study=root.name,
        identity=trial.identity,
        spec=spec,
        options=options,
        components=trial.components,
        variant=trial.label.rpartition(", seed")[0],
        **fields,
    )


def blocked_outcome(trial: Trial, trials: Mapping[str, Trial], store: Store) -> Outcome | None:
    """Return the outcome of a trial whose parent ended without weights; None if the weights are there.

    A trial has the state of its parent, diverged or failed: neither is a gap in a table.
    """
    if not trial.parent_id:
        return None
    record = store.record(trial.parent_id)
    state: State = "failed"
    reason = "it left neither a record nor a reason"
    if record is not None:
        state, reason = record["result"]["state"], ""
        if state == "done":
            return None
    elif (failure := store.failure(trial.parent_id)) is not None:
        state, reason = failure["state"], failure["reason"]
    parent = trials.get(trial.parent_id)
    message = f"its parent, {parent.label if parent else trial.parent_id}, ended as `{state}`"
    return Outcome(state, f"{message}: {reason}" if reason else message)


def select_rehearsals(
    trials: Sequence[Trial], pending: Sequence[Trial], store: Store, jobs: int, launcher: Launcher
) -> list[Task]:
    """Return rehearsals of the first pending trial of each variant and stage that has not made a step yet.

    Where all pending trials start at once, none waits for a rehearsal. It then runs beside them, for the comparison of
    the first step only, and on this machine's processors only.
    """
    is_beside = len(pending) <= jobs and not any(trial.parent_id for trial in pending)
    if is_beside and (launcher.is_remote or not launcher.changes_environment):
        return []
    stepped = {trial_group(trial) for trial in trials if _has_stepped(store, trial)}
    rehearsals: dict[TrialGroup, Trial] = {}
    for trial in pending:
        if trial_group(trial) not in stepped:
            rehearsals.setdefault(trial_group(trial), trial)
    return [
        Task(trial, is_rehearsal=True, other_environment=launcher.changes_environment, is_beside=is_beside)
        for trial in rehearsals.values()
        if not is_beside or _runs_on_cpu(trial)
    ]


def save_rehearsal(record: Mapping[str, Any], store: Store) -> None:
    """Save what the certificate of a trial compares with its first step, or with the second run of a program."""
    result = record["result"]
    if is_program(record["spec"]):
        document = {key: result[key] for key in ("state", "metrics")}
        certificate = {"values": result["certificate"]["values"]}
        store.write_rehearsal(
            record["identity"], {**document, "certificate": certificate, "provenance": record["provenance"]}
        )
        return
    certificate = {key: result["certificate"][key] for key in ("tensors", "batch_digests", "first_step")}
    document = {"losses": result["losses"], "certificate": certificate, "provenance": record["provenance"]}
    store.write_rehearsal(record["identity"], document)


def is_blocked(trial: Trial, rehearsed: Trial) -> bool:
    """Return whether a trial is skipped after a failed rehearsal; other tuning candidates are not."""
    return trial_group(trial) == trial_group(rehearsed) and trial.setting == rehearsed.setting


def _has_stepped(store: Store, trial: Trial) -> bool:
    folder = store.folder(trial.identity)
    return (folder / RECORD).is_file() or any(folder.glob(f"{CHECKPOINTS}/step-*"))


def _runs_on_cpu(trial: Trial) -> bool:
    return (trial.spec["trainer"] or {}).get("accelerator") == "cpu" or gpu_count() == 0


def default_jobs(planned: PlannedStudy) -> int:
    """Return the number of trials at a time where the user does not set it."""
    trainers = [trial.spec.get("trainer") or {} for trial in planned.plan.trials]
    gpus = gpu_count() if any(uses_accelerator(trainer) for trainer in trainers) else 0
    return make_launcher(planned).default_jobs(trials_at_once(trainers, cores()), trials_at_once(trainers, gpus))


def trials_at_once(trainers: Sequence[Mapping[str, Any]], devices: int) -> int:
    """Return the number of trials that have devices of their own at a time: at least 1 if there is any device."""
    count = max((devices_per_trial(trainer, devices) for trainer in trainers), default=1)
    return max(1, devices // count) if devices else 0


def make_launcher(planned: PlannedStudy) -> Launcher:
    """Return the launcher of a study; only its plugin is loaded, so that nothing waits for torch."""
    study = planned.plan.study
    node = study.launcher
    if study.program is not None and node["name"] == "local":
        node = {**node, "fork": False}  # the process of a trial imports nothing that a fork would share
    return make(LazyRegistry(planned.index), "launcher", node, kind=Launcher)
