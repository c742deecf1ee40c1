"""The state of one run of a study: what waits, what runs, what somebody else runs, and what follows from any news.

The supervisor: keeps processes running until every trial has ended, and decides what is tried again.

Whatever one trial does, the others go on. All that is known here is on disk as well, so a supervisor that was killed is
replaced by running the same again.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final, final

from paribus.errors import EXIT_OK, ParibusError, StoreError
from paribus.planning import rehearsal
from paribus.runner.events import Event, OnEvent, ignore_event
from paribus.runner.fork_server import plugin_arguments
from paribus.runner.jobs import Running, RunOptions, Task, blocked_outcome, worker_request
from paribus.runner.outcomes import EXIT_LOCKED, Outcome, fail_rehearsal, trial_outcome
from paribus.runner.peer_runners import LOCKED_SECONDS, PeerRunners
from paribus.runner.signals import InterruptedStudyError, StopRequest
from paribus.runner.trial_output import ProgressReader
from paribus.slots.launcher import Job, JobEnded, JobStarted, Launcher, LauncherEvent, LauncherMessage, Plugins
from paribus.storage.atomic import make_folder
from paribus.storage.lease import POLL_SECONDS, LeaseMonitor
from paribus.storage.store import LOG, PROGRESS, Store, Trial

TICK: Final = 0.1  # seconds between looks at progress, time-outs and the wish to stop
END_SECONDS: Final = 5.0  # from SIGKILL to the news of it


@final
class Scheduler:
    """The state of one run: what waits, what runs, and what somebody else runs."""

    def __init__(
        self, store: Store, spare: Store, launcher: Launcher, plugins: Plugins, rules: RunOptions, on_event: OnEvent
    ) -> None:
        self.store = store
        self.spare = spare
        self.launcher = launcher
        self.plugins = plugins
        self.rules = rules
        self.say = on_event
        self.stop = StopRequest()
        self.resume = ""
        self.waiting: deque[Task] = deque()
        self.running: dict[str, Running] = {}
        self.held: list[Task] = []
        self.others = PeerRunners(store, LeaseMonitor())
        self.trials: dict[str, Trial] = {}
        self.rehearsing: set[rehearsal.TrialGroup] = set()
        self.begun: set[str] = set()  # trials that others may begin from
        self.contended = False
        self.ending = False
        self.looked = 0.0  # when others were last asked
        self.idle = 0.0  # since when there is nothing to do but wait for others

    def run(self, trials: Sequence[Trial]) -> None:
        self._queue(trials)
        while self.waiting or self.running or self.held:
            if self.stop.is_requested:
                raise InterruptedStudyError(self.stop.signal or signal.SIGINT, self.resume)
            self._follow()
            self._fill()
            self._hear(TICK)
            self._watch()
            self._ask_again()

    def end(self) -> None:
        """Asks all that runs to stop, waits for its checkpoints, and ends what does not."""
        self.ending = True
        for name in self.running:
            self.launcher.stop(name, signal.SIGTERM)
        self._until_ended(self.rules.grace_seconds, patient=True)
        for name in self.running:
            self.launcher.stop(name, signal.SIGKILL)
        self._until_ended(END_SECONDS)

    def _until_ended(self, seconds: float, *, patient: bool = False) -> None:
        until = time.monotonic() + seconds
        while self.running and time.monotonic() < until and not (patient and self.stop.at_once):
            self._hear(TICK)

    # -- what is to be done --------------------------------------------------------------------------------------

    def _queue(self, trials: Sequence[Trial]) -> None:
        self.trials = {trial.identity: trial for trial in trials}
        once = list(self.trials.values())
        pending = [trial for trial in once if self.store.record(trial.identity) is None]
        self._pass_on()
        for trial in (
            rehearsal.select_rehearsals(once, pending, self.store, self.rules.jobs) if self.rules.rehearse else ()
        ):
            self.waiting.append(Task(trial, rehearsed=True))
            self.rehearsing.add(rehearsal.trial_group(trial))
        self.waiting.extend(Task(trial) for trial in pending)
        self.contended = self.rules.jobs > 1 and len(pending) > 1

    def _finished(self, trial: Trial) -> bool:
        """Whether the trial has a record; then this is its end."""
        record = self.store.record(trial.identity)
        self._pass_on()
        if record is not None:
            self.say(Event(kind="ended", trial=trial, state=record["result"]["state"]))
        return record is not None

    def _fill(self) -> None:
        while len(self.running) < self.rules.jobs and (task := self._next()) is not None:
            if not task.rehearsed and self.others.elsewhere(task.trial):
                self.held.append(task)
            else:
                self._start(task)

    def _next(self) -> Task | None:
        """The first that waits for nothing."""
        task = next((task for task in self.waiting if self._ready(task)), None)
        if task is not None:
            self.waiting.remove(task)
        return task

    def _ready(self, task: Task) -> bool:
        """Whether it may start: a trial waits for the rehearsal of its variant, and for the one that it begins from."""
        if task.rehearsed:
            return True
        begun = not task.trial.parent_id or task.trial.parent_id in self.begun
        return begun and rehearsal.trial_group(task.trial) not in self.rehearsing

    def _follow(self) -> None:
        """Lets begin what begins from a trial that has ended; where that left no model, its end is theirs."""
        tasks = (*self.waiting, *self.held, *(running.task for running in self.running.values()))
        left = {task.trial.identity for task in tasks if not task.rehearsed}
        for task in [task for task in self.waiting if task.trial.parent_id and not task.rehearsed]:
            before = task.trial.parent_id
            if before in left or before in self.begun:
                continue
            came_to = blocked_outcome(task.trial, self.trials, self.store)
            if came_to is None:
                self.begun.add(before)
                continue
            self.waiting.remove(task)
            left.discard(task.trial.identity)  # for what begins from this one: trials come in order
            self.store.create_folder(task.trial)
            self._settle(task.trial, came_to)

    def _start(self, task: Task) -> None:
        store = self.spare if task.rehearsed else self.store
        folder = store.create_folder(task.run)
        task.tries += 1
        taken = {running.place for running in self.running.values()}
        place = next(number for number in count() if number not in taken)
        self.running[task.name] = Running(task, ProgressReader(folder / PROGRESS), place)
        more = {
            "plugins": plugin_arguments(self.plugins),
            "rehearsal": task.rehearsed,
            "contended": self.contended,
            "job_slot": place,
            "expired_token": "" if task.rehearsed else self.others.gone.get(task.trial.identity, ""),
        }
        order = worker_request(task.run, store, self.rules, **more)
        self.launcher.start(Job(task.name, order.to_json(), str((folder / LOG).absolute())))

    # -- what happens --------------------------------------------------------------------------------------------

    def _hear(self, seconds: float) -> None:
        if not self.running:
            time.sleep(seconds)
            return
        for news in self.launcher.poll(seconds):
            self._heard(news)

    def _heard(self, news: LauncherEvent) -> None:
        match news:
            case LauncherMessage(text):
                self.say(Event(kind="note", text=text))
            case JobStarted(name, where) if name in self.running:
                running = self.running[name]
                running.began = time.monotonic()
                if not running.task.rehearsed:
                    self.say(Event(kind="started", trial=running.task.trial, attempt=running.task.tries, text=where))
            case JobEnded() if news.name in self.running:
                running = self.running[news.name]
                self._progress(running)
                self.idle = time.monotonic()
                del self.running[news.name]
                (self._rehearsed if running.task.rehearsed else self._ended)(running, news)

    def _watch(self) -> None:
        """Passes on progress, and ends what takes too long."""
        for name, running in self.running.items():
            self._progress(running)
            number = running.due(self.rules)
            if number is not None:
                self.launcher.stop(name, number)

    def _progress(self, running: Running) -> None:
        trial = running.task.trial
        latest = None
        for told in running.tail.read():
            if told.message:
                self.say(Event(kind="note", trial=trial, text=told.message))
            else:
                latest = told
        if latest is not None and not running.task.rehearsed:
            steps = (trial.spec["trainer"] or {}).get("max_steps") or 0
            self.say(Event(kind="progress", trial=trial, step=latest.step, steps=steps, loss=latest.loss))

    def _ended(self, running: Running, news: JobEnded) -> None:
        task = running.task
        if self._finished(task.trial):
            return
        if news.code == EXIT_LOCKED:
            self.held.append(task)
            return
        came_to = self._outcome(running, news, self.store)
        if self._again(task, came_to):
            self.say(
                Event(kind="note", trial=task.trial, text=f"{came_to.reason}; it is tried again, from its checkpoint")
            )
        else:
            self._settle(task.trial, came_to)

    def _rehearsed(self, running: Running, news: JobEnded) -> None:
        task = running.task
        if news.code == EXIT_OK and self.spare.record(task.trial.identity) is not None:
            came_to = Outcome("done", "")
        else:
            came_to = self._outcome(running, news, self.spare)
            if self._again(task, came_to):
                return
        self.rehearsing.discard(rehearsal.trial_group(task.trial))
        if came_to.state in ("done", "interrupted"):
            self.say(Event(kind="rehearsed", trial=task.trial))
        else:
            self.say(Event(kind="rehearsed", trial=task.trial, state=came_to.state, text=came_to.reason))
            self._give_up(task.trial, came_to)

    def _give_up(self, rehearsed: Trial, came_to: Outcome) -> None:
        """A variant that cannot take one step is not tried with other seeds."""
        log = self.spare.folder(rehearsed.identity) / LOG
        given_up = [task for task in self.waiting if not task.rehearsed and rehearsal.is_blocked(task.trial, rehearsed)]
        self.waiting = deque(task for task in self.waiting if task not in given_up)
        for task in given_up:
            fail_rehearsal(task.trial, came_to, self.store, log)
            self.say(Event(kind="ended", trial=task.trial, state=came_to.state, text=came_to.reason))

    def _outcome(self, running: Running, news: JobEnded, store: Store) -> Outcome:
        overtime = self.rules.timeout_seconds if running.asked is not None else None
        failure = store.failure(running.task.trial.identity)
        return trial_outcome(news, failure, overtime, ours=self.ending)

    def _again(self, task: Task, came_to: Outcome) -> bool:
        most = min(self.rules.retries, 1) if came_to.state == "out-of-memory" else self.rules.retries
        if self.ending or not came_to.may_retry or task.tries > most:
            return False
        if came_to.state == "out-of-memory":
            self.waiting.append(task)  # when less may be running
        else:
            self.waiting.appendleft(task)
        return True

    def _settle(self, trial: Trial, came_to: Outcome) -> None:
        """Writes down what the trial could not, unless somebody else runs it by now."""
        lock = self.store.lock(trial.identity)
        try:
            if lock.try_acquire():
                failure = self.store.failure(trial.identity)
                if failure is None or failure["state"] != came_to.state:
                    self.store.write_failure(trial.identity, came_to.state, came_to.reason)
        except ParibusError as error:
            self.say(Event(kind="note", trial=trial, text=str(error)))
        finally:
            lock.release()
        self.say(Event(kind="ended", trial=trial, state=came_to.state, text=came_to.reason))

    def _pass_on(self) -> None:
        """What the store found damaged is told."""
        for note in self.store.messages:
            self.say(Event(kind="note", text=note))
        self.store.messages.clear()

    # -- what others run -----------------------------------------------------------------------------------------

    def _ask_again(self) -> None:
        """Trials that others held may have ended, or be free again, as their holder was killed."""
        busy = bool(self.running) or any(map(self._ready, self.waiting))
        if not self.held or (busy and time.monotonic() - self.looked < POLL_SECONDS):
            return
        self.looked = time.monotonic()
        left = [task for task in self.held if not self._finished(task.trial)]
        self.held = [task for task in left if not self.others.free(task.trial)]
        self.waiting.extend(task for task in left if task not in self.held)
        busy = busy or any(map(self._ready, self.waiting))
        late = self.held and not busy and time.monotonic() - self.idle > LOCKED_SECONDS
        if late and all(self.others.alive(task.trial) for task in self.held):
            raise StoreError(*(self.others.held(task.trial) for task in self.held))


def run_trials(
    trials: Sequence[Trial],
    store: Store,
    *,
    launcher: Launcher,
    plugins: Plugins = Plugins(),
    rules: RunOptions = RunOptions(),
    on_event: OnEvent = ignore_event,
    stop: StopRequest | None = None,
    resume: str = "",
) -> None:
    """Runs what has no record yet, in the order given. What became of each trial is then in the store.

    The launcher is open, and stays so. `stop` is asked to stop by signals (see `catching`); then this raises an
    `InterruptedStudyError` with the command that resumes. Trials that others still run at the end are a `StoreError`.
    """
    shared = store.root if launcher.is_remote else None
    if shared is not None:
        make_folder(shared, files=store.files)
    with tempfile.TemporaryDirectory(prefix="paribus-" if shared is None else ".rehearsal-", dir=shared) as spare:
        supervisor = Scheduler(store, Store(Path(spare), rehearsal.STUDY), launcher, plugins, rules, on_event)
        supervisor.stop = stop or StopRequest()
        supervisor.resume = resume
        try:
            supervisor.run(trials)
        finally:
            supervisor.end()
