"""Scheduler of a run: starts trials through a launcher, and handles their ends, retries, timeouts and interruptions.

A failing trial does not affect the others. All state is on disk as well: after a kill, running the study again
continues it.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final, final

from paribus.errors import EXIT_OK, ParibusError, StoreError
from paribus.runner.in_process import InProcessLauncher
from paribus.runner.jobs import (
    LOCKED_SECONDS,
    REHEARSAL_STUDY,
    PeerRunners,
    RunningTask,
    RunOptions,
    Task,
    blocked_outcome,
    is_blocked,
    save_rehearsal,
    select_rehearsals,
)
from paribus.runner.jobs import worker_request as make_request
from paribus.runner.outcomes import EXIT_LOCKED, CommonFailure, Outcome, trial_outcome, write_rehearsal_failure
from paribus.runner.processes import plugin_arguments
from paribus.runner.progress import Event, OnEvent, ProgressReader, TrialGroup, ignore_event, trial_group
from paribus.runner.signals import InterruptedStudyError, StopRequest
from paribus.slots.launcher import Job, JobEnded, JobStarted, Launcher, LauncherEvent, LauncherMessage, Plugins
from paribus.specs.program_spec import is_program
from paribus.storage.atomic import make_folder
from paribus.storage.lease import POLL_SECONDS, LeaseMonitor
from paribus.storage.store import LOG, PROGRESS, Store, Trial

TICK: Final = 0.1  # seconds between checks of progress, timeouts and interruptions
KILL_SECONDS: Final = 5.0  # from SIGKILL to the end of a job


@final
class Scheduler:
    """State of one run: tasks that wait, that run, and that other runners have locked."""

    def __init__(
        self,
        store: Store,
        rehearsal_store: Store,
        launcher: Launcher,
        plugins: Plugins,
        options: RunOptions,
        on_event: OnEvent,
        stop: StopRequest,
        messages: set[str],
    ) -> None:
        self.store = store
        self.rehearsal_store = rehearsal_store
        self.launcher = launcher
        self.plugins = plugins
        self.options = options
        self.emit = on_event
        self.stop = stop
        self.waiting: deque[Task] = deque()
        self.beside: deque[Task] = deque()  # rehearsals that no trial waits for
        self.running: dict[str, RunningTask] = {}
        self.locked: list[Task] = []
        self.peers = PeerRunners(store, LeaseMonitor())
        self.trials: dict[str, Trial] = {}
        self.rehearsing: set[TrialGroup] = set()
        self.messages = messages  # of trials, each reported once
        self.usable_parents: set[str] = set()  # identities of ended trials with weights
        self.trial_options = options.trial
        self.is_ending = False
        self.last_lock_check = 0.0
        self.last_end = 0.0  # when a job ended last
        self.common_failure = CommonFailure(())

    def run(self, trials: Sequence[Trial], resume: str) -> None:
        self._queue(trials)
        while (self.waiting or self.running or self.locked or self.beside) and not self.stop.is_requested:
            self._resolve_parents()
            self._start_tasks()
            self._poll(TICK)
            self.watch()
            self._check_locks()
        if self.stop.is_requested:
            raise InterruptedStudyError(self.stop.signal or signal.SIGINT, resume)

    def end(self) -> None:
        """Stop all jobs: SIGTERM, time to write their checkpoints, then SIGKILL."""
        self.is_ending = True
        for name in self.running:
            self.launcher.stop(name, signal.SIGTERM)
        end = time.monotonic() + self.options.grace_seconds
        while self.running and time.monotonic() < end and not self.stop.at_once:
            self._poll(TICK)
        for name in self.running:
            self.launcher.stop(name, signal.SIGKILL)
        end = time.monotonic() + KILL_SECONDS
        while self.running and time.monotonic() < end:
            self._poll(TICK)

    def watch(self) -> None:
        """Report progress, and stop trials that exceed their time."""
        for name, running in self.running.items():
            self._report_progress(running)
            number = running.timeout_signal(self.options)
            if number is not None:
                self.launcher.stop(name, number)

    # -- starting tasks ------------------------------------------------------------------------------------------

    def _queue(self, trials: Sequence[Trial]) -> None:
        self.trials = {trial.identity: trial for trial in trials}
        unique = list(self.trials.values())
        if self.options.repeat:
            self.waiting.extend(Task(trial, is_rehearsal=True) for trial in unique)
            return
        pending = [trial for trial in unique if self.store.record(trial.identity) is None]
        is_first_run = len(pending) == len(unique)  # no variant has a record
        self.common_failure = CommonFailure({*map(trial_group, unique), *([] if is_first_run else [None])})
        self._report_store_messages()
        if self.options.rehearse:
            for task in select_rehearsals(unique, pending, self.store, self.options.jobs, self.launcher):
                if task.is_beside:
                    self.beside.append(task)
                else:
                    self.waiting.append(task)
                    self.rehearsing.add(trial_group(task.trial))
        self.waiting.extend(Task(trial) for trial in pending)
        self.trial_options = replace(self.options.trial, contended=self.options.jobs > 1 and len(pending) > 1)

    def _resolve_parents(self) -> None:
        """Release trials whose parent has ended with weights; end those whose parent has none."""
        tasks = (*self.waiting, *self.locked, *(running.task for running in self.running.values()))
        unfinished = {task.trial.identity for task in tasks if not task.is_rehearsal}
        for task in [task for task in self.waiting if task.trial.parent_id and not task.is_rehearsal]:
            parent = task.trial.parent_id
            if parent in unfinished or parent in self.usable_parents:
                continue
            outcome = blocked_outcome(task.trial, self.trials, self.store)
            if outcome is None:
                self.usable_parents.add(parent)
                continue
            self.waiting.remove(task)
            unfinished.discard(task.trial.identity)  # for children of this trial, which follow in the queue
            self.store.create_folder(task.trial)
            self._write_outcome(task.trial, outcome)

    def _start_tasks(self) -> None:
        is_beside = [running.task.is_beside for running in self.running.values()]
        if self.beside and not any(is_beside):
            self._start(self.beside.popleft())
        while len(self.running) - sum(is_beside) < self.options.jobs:
            task = next((task for task in self.waiting if self._is_ready(task)), None)
            if task is None:
                return
            self.waiting.remove(task)
            if not task.is_rehearsal and self.peers.runs_remotely(task.trial):
                self.locked.append(task)
            else:
                self._start(task)

    def _is_ready(self, task: Task) -> bool:
        """Return whether a task waits neither for its parent nor for the rehearsal of its variant."""
        if task.is_rehearsal:
            return True
        has_parent = not task.trial.parent_id or task.trial.parent_id in self.usable_parents
        return has_parent and trial_group(task.trial) not in self.rehearsing

    def _start(self, task: Task) -> None:
        store = self.rehearsal_store if task.is_rehearsal else self.store
        folder = store.create_folder(task.trial_to_run)
        task.attempts += 1
        used_slots = {running.slot for running in self.running.values()}
        slot = next(number for number in count() if number not in used_slots)
        self.running[task.name] = RunningTask(task, ProgressReader(folder / PROGRESS), slot)
        request = make_request(
            task.trial_to_run,
            store,
            self.trial_options,
            plugins=plugin_arguments(self.plugins),
            is_rehearsal=task.is_rehearsal,
            # The program of a cluster's job has the GPUs that the cluster gave to the job.
            job_slot=None if self.launcher.is_remote and is_program(task.trial.spec) else slot,
            expired_token="" if task.is_rehearsal else self.peers.expired_tokens.get(task.trial.identity, ""),
        )
        log = str((folder / LOG).absolute())
        self.launcher.start(Job(task.name, request.to_json(), log, task.other_environment))

    # -- events of the launcher ----------------------------------------------------------------------------------

    def _poll(self, seconds: float) -> None:
        if not self.running:
            time.sleep(seconds)
            return
        for event in self.launcher.poll(seconds):
            self._handle(event)

    def _handle(self, event: LauncherEvent) -> None:
        match event:
            case LauncherMessage(text):
                self.emit(Event(kind="note", text=text))
            case JobStarted(name, location) if name in self.running:
                running = self.running[name]
                running.started = time.monotonic()
                task = running.task
                if not task.is_rehearsal:
                    self.emit(Event(kind="started", trial=task.trial, attempt=task.attempts, text=location))
            case JobEnded() if event.name in self.running:
                running = self.running[event.name]
                self._report_progress(running)
                self.last_end = time.monotonic()
                del self.running[event.name]
                if running.task.is_rehearsal:
                    self._end_rehearsal(running, event)
                else:
                    self._end_trial(running, event)

    def _report_progress(self, running: RunningTask) -> None:
        trial = running.task.trial
        latest = None
        for line in running.progress.read():
            if line.message and line.message not in self.messages:
                self.messages.add(line.message)
                self.emit(Event(kind="note", trial=trial, text=line.message))
            elif not line.message:
                latest = line
        if latest is not None and not running.task.is_rehearsal:
            steps = (trial.spec.get("trainer") or {}).get("max_steps") or 0
            self.emit(Event(kind="progress", trial=trial, step=latest.step, steps=steps, loss=latest.loss))

    def _end_trial(self, running: RunningTask, event: JobEnded) -> None:
        task = running.task
        if self._report_record(task.trial):
            self._stop_if_doomed(task.trial, None)
            return
        if event.code == EXIT_LOCKED:
            self.locked.append(task)
            return
        outcome = self._outcome(running, event, self.store)
        if self._retry(task, outcome):
            start = "" if is_program(task.trial.spec) else ", from its checkpoint"
            text = f"{outcome.reason}; it is tried again{start}"
            self.emit(Event(kind="note", trial=task.trial, text=text))
        else:
            self._write_outcome(task.trial, outcome)
            self._stop_if_doomed(task.trial, outcome)

    def _stop_if_doomed(self, trial: Trial, outcome: Outcome | None) -> None:
        """Start no further trial if the first of every variant have failed for one and the same reason."""
        if self.common_failure.add(trial_group(trial), outcome) and self.waiting and not self.is_ending:
            text = f"all variants failed for the same reason, so the other {len(self.waiting)} trials are not run"
            self.emit(Event(kind="note", text=text))
            self.waiting.clear()

    def _end_rehearsal(self, running: RunningTask, event: JobEnded) -> None:
        task, trial = running.task, running.task.trial
        record = self.rehearsal_store.record(trial.identity) if event.code == EXIT_OK else None
        outcome = Outcome("done", "") if record else self._outcome(running, event, self.rehearsal_store)
        if task.other_environment:
            self._save_rehearsal(trial, record, outcome)
        if task.is_beside or (record is None and self._retry(task, outcome)):
            return
        if is_program(trial.spec):
            self._save_rehearsal(trial, record, outcome)
            return
        self.rehearsing.discard(trial_group(trial))
        if outcome.state in ("done", "interrupted"):
            self.emit(Event(kind="rehearsed", trial=trial))
        else:
            self.emit(Event(kind="rehearsed", trial=trial, state=outcome.state, text=outcome.reason))
            self._fail_variant(trial, outcome)

    def _save_rehearsal(self, trial: Trial, record: Mapping[str, Any] | None, outcome: Outcome) -> None:
        """Save the rehearsal for the certificate, or why there is none."""
        try:
            if record is not None:
                save_rehearsal(record, self.store)
            elif outcome.state != "interrupted":
                self.store.write_rehearsal(trial.identity, {"failure": outcome.reason})
        except ParibusError as error:
            self.emit(Event(kind="note", trial=trial, text=str(error)))

    def _fail_variant(self, rehearsed: Trial, outcome: Outcome) -> None:
        """End all trials of a variant whose first step failed."""
        log = self.rehearsal_store.folder(rehearsed.identity) / LOG
        failed = [task for task in self.waiting if not task.is_rehearsal and is_blocked(task.trial, rehearsed)]
        self.waiting = deque(task for task in self.waiting if task not in failed)
        for task in failed:
            write_rehearsal_failure(task.trial, outcome, self.store, log)
            self.emit(Event(kind="ended", trial=task.trial, state=outcome.state, text=outcome.reason))

    def _outcome(self, running: RunningTask, event: JobEnded, store: Store) -> Outcome:
        timeout = self.options.timeout_seconds if running.timed_out is not None else None
        failure = store.failure(running.task.trial.identity)
        resumes = not is_program(running.task.trial.spec)
        return trial_outcome(event, failure, timeout, is_ending=self.is_ending, resumes=resumes)

    def _retry(self, task: Task, outcome: Outcome) -> bool:
        """Queue a task again if another attempt may succeed, and return whether it was queued."""
        if task.other_environment and outcome.state != "interrupted" and not self.is_ending:
            self.waiting.appendleft(Task(task.trial, is_rehearsal=True))  # a trial may need what it lacked there
            return True
        out_of_memory = outcome.state == "out-of-memory"
        retries = min(self.options.retries, 1) if out_of_memory else self.options.retries
        if self.is_ending or not outcome.may_retry or task.attempts > retries:
            return False
        if out_of_memory:
            self.waiting.append(task)  # later, other trials may leave more memory
        else:
            self.waiting.appendleft(task)
        return True

    def _write_outcome(self, trial: Trial, outcome: Outcome) -> None:
        """Write the outcome that the trial itself could not write, unless another process runs it by now."""
        lock = self.store.lock(trial.identity)
        try:
            if lock.try_acquire():
                failure = self.store.failure(trial.identity)
                if failure is None or failure["state"] != outcome.state:
                    self.store.write_failure(trial.identity, outcome.state, outcome.reason)
        except ParibusError as error:
            self.emit(Event(kind="note", trial=trial, text=str(error)))
        finally:
            lock.release()
        self.emit(Event(kind="ended", trial=trial, state=outcome.state, text=outcome.reason))

    def _report_record(self, trial: Trial) -> bool:
        """Report the end of a trial that has a record, and return whether it has one."""
        record = self.store.record(trial.identity)
        self._report_store_messages()
        if record is not None:
            self.emit(Event(kind="ended", trial=trial, state=record["result"]["state"]))
        return record is not None

    def _report_store_messages(self) -> None:
        for message in self.store.messages:
            self.emit(Event(kind="note", text=message))
        self.store.messages.clear()

    # -- trials of other runners ---------------------------------------------------------------------------------

    def _check_locks(self) -> None:
        """Check locked trials again: they may have ended, or be free since the death of their runner."""
        is_busy = bool(self.running) or any(map(self._is_ready, self.waiting))
        if not self.locked or (is_busy and time.monotonic() - self.last_lock_check < POLL_SECONDS):
            return
        self.last_lock_check = time.monotonic()
        unfinished = [task for task in self.locked if not self._report_record(task.trial)]
        self.locked = [task for task in unfinished if not self.peers.is_free(task.trial)]
        self.waiting.extend(task for task in unfinished if task not in self.locked)
        is_busy = is_busy or any(map(self._is_ready, self.waiting))
        is_late = self.locked and not is_busy and time.monotonic() - self.last_end > LOCKED_SECONDS
        if is_late and all(self.peers.is_alive(task.trial) for task in self.locked):
            raise StoreError(*(self.peers.locked_problem(task.trial) for task in self.locked))


def run_trials(
    trials: Sequence[Trial],
    store: Store,
    *,
    launcher: Launcher,
    plugins: Plugins = Plugins(),
    options: RunOptions = RunOptions(),
    on_event: OnEvent = ignore_event,
    stop: StopRequest | None = None,
    resume: str = "",
    messages: set[str] | None = None,
) -> None:
    """Run the trials that have no record, in the given order; their records and failures are in the store afterwards.

    The launcher is open and stays open. `stop` is requested by signals (`catch_signals`) and raises an
    `InterruptedStudyError` with the command `resume`. Trials that other runners still run at the end are a
    `StoreError`. Messages of trials that are among `messages` are not reported again; the others are added to them.
    """
    shared = store.root if launcher.is_remote or options.repeat else None  # a program may write large files
    if shared is not None:
        make_folder(shared, files=store.files)
    with tempfile.TemporaryDirectory(prefix="paribus-" if shared is None else ".rehearsal-", dir=shared) as folder:
        scheduler = Scheduler(
            store,
            Store(Path(folder), REHEARSAL_STUDY),
            launcher,
            plugins,
            options,
            on_event,
            stop or StopRequest(),
            set() if messages is None else messages,
        )
        if isinstance(launcher, InProcessLauncher):
            launcher.watch = scheduler.watch
        try:
            scheduler.run(trials, resume)
        finally:
            scheduler.end()
