"""The supervisor's decisions, with a launcher that starts no process: each job ends as the test has it end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, final

import pytest
from tests.fixtures.problems import raises_problem
from tests.fixtures.records import stored_record

from paribus.errors import EXIT_INTERRUPTED, EXIT_STORE, EXIT_TERMINATED, PluginError, Problem, StoreError
from paribus.runner import scheduler
from paribus.runner.jobs import RunOptions
from paribus.runner.outcomes import EXIT_LOCKED, EXIT_MEMORY, EXIT_RETRY
from paribus.runner.progress import Event
from paribus.runner.scheduler import run_trials
from paribus.runner.signals import InterruptedStudyError, StopRequest
from paribus.runner.worker import WorkerRequest
from paribus.slots.launcher import Job, JobEnded, JobStarted, Launcher, LauncherEvent, LauncherMessage, Plugins
from paribus.storage.atomic import FILES, make_folder, write_json
from paribus.storage.saved_model import RECORD
from paribus.storage.store import FAILURE, LOG, PROGRESS, Store, Trial
from paribus.train.trial_options import TrialOptions

End: TypeAlias = "int | signal.Signals | None"  # exit code, signal, or None: it runs until it is stopped
Act = Callable[[WorkerRequest], End]


@final
class Acted(Launcher):
    """Does what a test says instead of starting a process."""

    def __init__(self, act: Act) -> None:
        self.act = act
        self.orders: list[WorkerRequest] = []
        self.stops: list[tuple[str, int]] = []
        self.running: dict[str, Job] = {}
        self.most = 0
        self.deaf: set[str] = set()  # jobs that only SIGKILL ends
        self.immortal: set[str] = set()  # jobs whose end is never reported
        self.last = "its last line"
        self.silent_until = 0.0
        self._news: deque[LauncherEvent] = deque()

    def open(self, plugins: Plugins) -> None: ...

    def start(self, job: Job) -> None:
        order = WorkerRequest.from_json(job.request)
        self.orders.append(order)
        self.running[job.name] = job
        self.most = max(self.most, len(self.running))
        self._news.append(JobStarted(job.name, "a process"))
        end = self.act(order)
        if end is not None:
            self._end(job.name, end)

    def poll(self, seconds: float) -> Sequence[LauncherEvent]:
        if not self._news or time.monotonic() < self.silent_until:
            time.sleep(min(seconds, 0.01))
            return []
        news = self._news.popleft()
        if isinstance(news, JobEnded):
            del self.running[news.name]
        return [news]

    def stop(self, name: str, signal: int) -> None:
        self.stops.append((name, signal))
        if name in self.immortal:
            return
        if name not in self.deaf or signal == KILL:
            self._end(name, KILL if signal == KILL else EXIT_TERMINATED)

    def close(self) -> None: ...

    def say(self, news: LauncherEvent) -> None:
        self._news.append(news)

    def _end(self, name: str, end: int | signal.Signals) -> None:
        if isinstance(end, signal.Signals):
            self._news.append(JobEnded(name, None, int(end), self.last))
        else:
            self._news.append(JobEnded(name, end, None, self.last))

    @property
    def ran(self) -> list[str]:
        """The trials that were started, rehearsals left out."""
        return [order.identity for order in self.orders if not order.is_rehearsal]

    @property
    def rehearsed(self) -> list[str]:
        return [order.identity for order in self.orders if order.is_rehearsal]


KILL = signal.SIGKILL


def of(variant: str, seed: int = 0) -> Trial:
    spec = {"seed": seed, "trainer": {"max_steps": 100}, "data": {"batch": 4}, "variant": variant}
    return Trial(f"{variant}-{seed}", variant, seed, spec, {}, "code", "corpus")


def done(order: WorkerRequest) -> int:
    """Leaves a record, as a trial does."""
    folder = Path(order.store) / order.study / order.identity
    write_json(folder / RECORD, stored_record(order.identity))
    return 0


def fails(order: WorkerRequest) -> int:
    """Leaves a reason, as a trial does that raises."""
    Store(Path(order.store), order.study).write_failure(order.identity, "failed", "ValueError: broken")
    return 1


def only(variant: str, act: Act) -> Act:
    """`act` for this variant, and for the others what is well."""
    return lambda order: act(order) if order.spec["variant"] == variant else done(order)


def in_turn(*acts: Act) -> Act:
    remaining = deque(acts)

    def act(order: WorkerRequest) -> End:
        return remaining.popleft()(order)

    return act


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, "study")


def supervised(store: Store, act: Act | Acted, *trials: Trial, **rules: Any) -> tuple[Acted, list[Event]]:
    launcher = act if isinstance(act, Acted) else Acted(act)
    events: list[Event] = []
    stop = rules.pop("stop", None)
    run_trials(
        trials,
        store,
        launcher=launcher,
        plugins=Plugins(files=("mine.py",)),
        options=RunOptions(**rules),
        on_event=events.append,
        stop=stop,
        resume="paribus run study",
    )
    return launcher, events


def texts(events: Sequence[Event], kind: str) -> list[str]:
    return [event.text for event in events if event.kind == kind]


GRID = [of(variant, seed) for seed in range(3) for variant in ("a", "b")]


def test_every_trial_runs_once_in_the_order_given(store: Store) -> None:
    launcher, events = supervised(store, done, *GRID, *GRID, rehearse=False)
    assert launcher.ran == [trial.identity for trial in GRID]
    assert [(event.kind, event.trial) for event in events] == [
        (kind, trial) for trial in GRID for kind in ("started", "ended")
    ]
    assert {store.state(trial.identity) for trial in GRID} == {"done"}
    assert json.loads((store.folder("a-0") / "trial.json").read_text())["body"]["variant"] == "a"


def test_trials_with_a_record_do_not_run_again(store: Store) -> None:
    supervised(store, done, *GRID[:4])
    launcher, events = supervised(store, done, *GRID)
    assert launcher.ran == ["a-2", "b-2"]
    assert [event.trial for event in events if event.kind == "ended"] == GRID[4:]
    assert supervised(store, done, *GRID)[1] == []


def test_a_request_has_all_fields(store: Store) -> None:
    launcher, _ = supervised(store, done, *GRID, jobs=2, trial=TrialOptions(checkpoint_steps=3), rehearse=False)
    (order, *_) = launcher.orders
    assert order == WorkerRequest(
        store=str(store.root.parent),
        study="study",
        identity="a-0",
        spec=GRID[0].spec,
        plugins={"plugins": ["mine.py"], "only": None, "no_plugins": False},
        options=TrialOptions(checkpoint_steps=3, contended=True),
        variant="a",
        job_slot=0,
    )
    assert {order.job_slot for order in launcher.orders} == {0, 1}


@pytest.mark.parametrize(("is_remote", "slot"), [(True, None), (False, 0)])
def test_a_program_on_a_cluster_has_all_gpus_of_its_job(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_remote: bool, slot: int | None
) -> None:
    monkeypatch.setattr(Acted, "is_remote", is_remote)
    trial = of("a", 0)
    launcher, _ = supervised(store, done, replace(trial, spec={**trial.spec, "program": {}}))
    assert launcher.orders[-1].job_slot == slot


@pytest.mark.parametrize("jobs", [1, 3])
def test_as_many_jobs_run_as_requested(store: Store, jobs: int) -> None:
    launcher, _ = supervised(store, done, *GRID, jobs=jobs)
    assert launcher.most == jobs
    assert launcher.orders[0].options.contended == (jobs > 1)


# --- rehearsals ---


def test_every_variant_takes_one_step_before_the_first_trial(store: Store) -> None:
    launcher, events = supervised(store, done, *GRID)
    assert [order.is_rehearsal for order in launcher.orders] == [True] * 2 + [False] * 6
    assert launcher.rehearsed == ["a-0", "b-0"]
    assert launcher.orders[0].spec["trainer"]["max_steps"] == 1
    assert launcher.orders[0].spec["data"] == {"batch": 4, "validation": 4}
    assert Path(launcher.orders[0].store) != store.root.parent
    assert not Path(launcher.orders[0].store).exists()
    assert [(event.trial, event.state) for event in events if event.kind == "rehearsed"] == [
        (GRID[0], None),
        (GRID[1], None),
    ]


def test_a_failed_first_step_ends_all_seeds_of_a_variant(store: Store) -> None:
    def broken(order: WorkerRequest) -> int:
        (Path(order.store) / order.study / order.identity / LOG).write_text("a traceback")
        return fails(order)

    launcher, events = supervised(store, only("b", broken), *GRID, jobs=2)
    assert launcher.ran == ["a-0", "a-1", "a-2"]
    for seed in range(3):
        failure = store.failure(f"b-{seed}")
        assert failure == {"state": "failed", "reason": "ValueError: broken", "rehearsal": True}
        assert (store.folder(f"b-{seed}") / LOG).read_text() == "a traceback"
    (told,) = (event for event in events if event.kind == "rehearsed" and event.state is not None)
    assert (told.trial, told.state, told.text) == (GRID[1], "failed", "ValueError: broken")
    ended = [(event.trial.identity, event.state) for event in events if event.kind == "ended" and event.trial]
    assert sorted(ended) == sorted(
        [(f"a-{seed}", "done") for seed in range(3)] + [(f"b-{seed}", "failed") for seed in range(3)]
    )


def test_a_variant_waits_only_for_its_own_rehearsal(store: Store) -> None:
    def hangs_first(order: WorkerRequest) -> End:
        return None if order.is_rehearsal else done(order)

    launcher, _ = supervised(store, only("a", hangs_first), *GRID, jobs=2, timeout_seconds=0.2)
    assert launcher.ran == ["b-0", "b-1", "b-2"]
    assert {store.state(f"a-{seed}") for seed in range(3)} == {"timeout"}


def test_a_rehearsal_that_is_killed_is_repeated_once(store: Store) -> None:
    acts = [lambda order: KILL, done, done] + [done] * 6
    launcher, _ = supervised(store, in_turn(*acts), *GRID)
    assert launcher.rehearsed == ["a-0", "a-0", "b-0"]
    assert len(launcher.ran) == 6


def test_rehearsals_are_skipped_if_they_save_nothing(store: Store) -> None:
    assert supervised(store, done, *GRID[:2], jobs=2)[0].rehearsed == []
    make_folder(store.folder("c-0") / "checkpoints")
    (store.folder("c-0") / "checkpoints" / "step-00000001.safetensors").touch()
    assert supervised(store, done, *GRID, of("c"), of("c", 1), of("d"))[0].rehearsed == ["d-0"]


# --- failures ---


def test_a_trial_that_raises_is_not_tried_again(store: Store) -> None:
    launcher, events = supervised(store, only("a", fails), *GRID, retries=3, rehearse=False)
    assert launcher.ran == [trial.identity for trial in GRID]
    assert [store.state(trial.identity) for trial in GRID] == ["failed", "done"] * 3
    ended = [event for event in events if event.kind == "ended" and event.state == "failed"]
    assert [(event.trial, event.text) for event in ended] == [(each, "ValueError: broken") for each in GRID[::2]]


def test_a_killed_trial_is_tried_again(store: Store) -> None:
    launcher, events = supervised(store, in_turn(lambda order: KILL, done, done), of("a"), of("b"), rehearse=False)
    assert launcher.ran == ["a-0", "a-0", "b-0"]
    assert [event.attempt for event in events if event.kind == "started"] == [1, 2, 1]
    (note,) = texts(events, "note")
    assert note.startswith("its process was ended by signal 9 (SIGKILL), likely because the machine was out of memory")
    assert note.endswith("; it is tried again, from its checkpoint")


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_killed_trial_fails_after_its_retries(store: Store, retries: int) -> None:
    launcher, _ = supervised(store, lambda order: signal.SIGSEGV, of("a"), retries=retries)
    assert launcher.ran == ["a-0"] * (retries + 1)
    failure = store.failure("a-0")
    assert failure is not None
    assert failure["state"] == "failed"
    assert failure["reason"] == "its process was ended by signal 11 (SIGSEGV); its last line was: its last line"


def test_out_of_memory_is_tried_once_more_after_the_others(store: Store) -> None:
    launcher, _ = supervised(store, only("a", lambda order: EXIT_MEMORY), of("a"), of("b"), retries=3, rehearse=False)
    assert launcher.ran == ["a-0", "b-0", "a-0"]
    assert store.failure("a-0") == {"state": "out-of-memory", "reason": "its last line"}


def test_a_failing_disk_is_tried_again(store: Store) -> None:
    launcher, _ = supervised(store, in_turn(lambda order: EXIT_RETRY, done), of("a"))
    assert launcher.ran == ["a-0", "a-0"]
    assert store.state("a-0") == "done"


@pytest.mark.parametrize("code", [0, 7])
def test_a_process_that_ends_without_a_failure_file_has_failed(store: Store, code: int) -> None:
    launcher, _ = supervised(store, lambda order: code, of("a"))
    assert launcher.ran == ["a-0"]
    failure = store.failure("a-0")
    assert failure is not None
    assert f"exit code {code}" in failure["reason"]


def test_a_record_counts_however_the_process_ended(store: Store) -> None:
    def crashes_after(order: WorkerRequest) -> End:
        done(order)
        return signal.SIGSEGV

    _, events = supervised(store, crashes_after, of("a"))
    assert [event.state for event in events if event.kind == "ended"] == ["done"]


def test_a_damaged_record_is_set_aside_and_the_trial_runs_again(store: Store) -> None:
    supervised(store, done, of("a"))
    (store.folder("a-0") / RECORD).write_text("{}")
    launcher, events = supervised(store, done, of("a"))
    assert launcher.ran == ["a-0"]
    assert "cut, edited or damaged" in texts(events, "note")[0]


def test_a_signal_from_outside_interrupts_a_trial(store: Store) -> None:
    launcher, _ = supervised(store, only("a", lambda order: signal.SIGTERM), of("a"), of("b"), rehearse=False)
    assert launcher.ran == ["a-0", "b-0"]
    assert [store.state("a-0"), store.state("b-0")] == ["interrupted", "done"]


def test_a_store_that_cannot_be_written_ends_the_run_and_what_runs(store: Store) -> None:
    def vanishes(order: WorkerRequest) -> None:
        store.files = FILES.with_callback(refuse)

    def refuse(name: str) -> None:
        raise PermissionError(13, "Permission denied")

    launcher = Acted(vanishes)
    with raises_problem(StoreError, "cannot-write", "Permission denied"):
        supervised(store, launcher, *GRID, jobs=2, rehearse=False)
    assert launcher.stops == [("a-0", signal.SIGTERM)]


def test_a_failure_that_cannot_be_written_is_still_reported(store: Store) -> None:
    def fills_the_disk(order: WorkerRequest) -> End:
        store.files = FILES.with_callback(refuse)
        return signal.SIGSEGV

    def refuse(name: str) -> None:
        raise OSError(28, "No space left on device")

    _, events = supervised(store, fills_the_disk, of("a"), retries=0)
    assert "No space left on device" in texts(events, "note")[0]
    assert [event.state for event in events if event.kind == "ended"] == ["failed"]


def test_an_error_of_the_launcher_ends_the_run(store: Store) -> None:
    def breaks(order: WorkerRequest) -> End:
        raise PluginError(Problem(code="plugin-failed", message="gone"))

    with raises_problem(PluginError, "plugin-failed", "gone"):
        supervised(store, breaks, *GRID)


# --- time ---


def test_a_trial_over_its_time_gets_sigterm(store: Store) -> None:
    launcher, _ = supervised(store, lambda order: None, of("a"), timeout_seconds=0.1)
    assert launcher.stops == [("a-0", signal.SIGTERM)]
    assert launcher.ran == ["a-0"]
    assert store.failure("a-0") == {
        "state": "timeout",
        "reason": "it was stopped after 0.1 s; run again, it goes on from its checkpoint",
    }


def test_a_trial_that_ignores_sigterm_is_killed(store: Store) -> None:
    launcher = Acted(lambda order: None)
    launcher.deaf.add("a-0")
    supervised(store, launcher, of("a"), timeout_seconds=0.1, grace_seconds=0.1)
    assert launcher.stops == [("a-0", signal.SIGTERM), ("a-0", KILL)]
    assert store.state("a-0") == "timeout"


def test_time_counts_from_the_start_of_the_process(store: Store) -> None:
    launcher = Acted(done)
    launcher.silent_until = time.monotonic() + 0.5  # a cluster that takes its time
    supervised(store, launcher, of("a"), timeout_seconds=0.2)
    assert launcher.stops == []
    assert store.state("a-0") == "done"


# --- the wish to stop ---


@pytest.mark.parametrize(
    ("number", "code", "name"),
    [
        (signal.SIGINT, EXIT_INTERRUPTED, "Ctrl-C"),
        (signal.SIGTERM, EXIT_TERMINATED, "SIGTERM"),
        (signal.SIGHUP, EXIT_TERMINATED, "SIGHUP"),
        (signal.SIGUSR1, EXIT_TERMINATED, "SIGUSR1"),
    ],
)
def test_a_signal_stops_all_trials_and_names_the_resume_command(
    store: Store, number: signal.Signals, code: int, name: str
) -> None:
    stop = StopRequest()
    launcher = Acted(lambda order: stop.request(number))
    with raises_problem(InterruptedStudyError, "interrupted", name) as caught:
        supervised(store, launcher, *GRID, jobs=2, stop=stop, rehearse=False)
    assert caught.value.exit_code == code
    assert launcher.stops == [("a-0", signal.SIGTERM), ("b-0", signal.SIGTERM)]
    assert [store.state(trial.identity) for trial in GRID] == ["interrupted"] * 2 + ["pending"] * 4
    assert supervised(store, done, *GRID)[0].ran == [trial.identity for trial in GRID]


def test_a_second_signal_kills_the_jobs(store: Store) -> None:
    stop = StopRequest()

    def impatient(order: WorkerRequest) -> None:
        stop.request(signal.SIGINT)
        stop.at_once = True

    launcher = Acted(impatient)
    launcher.deaf.update(("a-0", "b-0"))
    with raises_problem(InterruptedStudyError, "interrupted", "Ctrl-C"):
        supervised(store, launcher, *GRID, jobs=2, stop=stop, rehearse=False)
    assert [number for _, number in launcher.stops] == [signal.SIGTERM] * 2 + [KILL] * 2
    assert [store.state(trial.identity) for trial in GRID[:2]] == ["interrupted"] * 2


def test_a_trial_that_does_not_stop_is_killed(store: Store) -> None:
    stop = StopRequest()
    launcher = Acted(lambda order: stop.request(signal.SIGTERM))
    launcher.deaf.add("a-0")
    with raises_problem(InterruptedStudyError, "interrupted", "SIGTERM"):
        supervised(store, launcher, of("a"), stop=stop, grace_seconds=0.1)
    assert launcher.stops == [("a-0", signal.SIGTERM), ("a-0", KILL)]


def test_an_interruption_shuts_down_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "KILL_SECONDS", 0.1)
    stop = StopRequest()
    launcher = Acted(lambda order: stop.request(signal.SIGINT))
    launcher.immortal.add("a-0")
    with raises_problem(InterruptedStudyError, "interrupted", "Ctrl-C"):
        supervised(store, launcher, of("a"), stop=stop, grace_seconds=0.1)
    assert launcher.stops == [("a-0", signal.SIGTERM), ("a-0", KILL)]


def test_a_trial_that_ends_during_an_interruption_is_done(store: Store) -> None:
    stop = StopRequest()

    def just_in_time(order: WorkerRequest) -> None:
        stop.request(signal.SIGINT)
        done(order)

    with raises_problem(InterruptedStudyError, "interrupted", "Ctrl-C"):
        supervised(store, just_in_time, of("a"), stop=stop)
    assert store.state("a-0") == "done"


# --- others ---


def test_trials_of_other_runners_are_not_started(store: Store) -> None:
    store.create_folder(of("a"))
    lock = store.lock("a-0")
    lock.acquire()

    def other(order: WorkerRequest) -> int:
        if order.identity == "a-0":
            return EXIT_LOCKED
        done(
            WorkerRequest(store=order.store, study=order.study, identity="a-0", spec=order.spec)
        )  # it ends there meanwhile
        return done(order)

    launcher, events = supervised(store, other, of("a"), of("b"), rehearse=False)
    assert launcher.ran == ["a-0", "b-0"]
    assert sorted(event.trial.identity for event in events if event.kind == "ended" and event.trial) == ["a-0", "b-0"]
    lock.release()


def test_trials_that_other_runners_left_are_run(store: Store) -> None:
    launcher, _ = supervised(store, in_turn(lambda order: EXIT_LOCKED, done, done), of("a"), of("b"), rehearse=False)
    assert launcher.ran == ["a-0", "b-0", "a-0"]


def test_an_error_names_trials_of_other_runners(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "LOCKED_SECONDS", 0.3)
    store.create_folder(of("a"))
    with (
        store.lock("a-0"),
        raises_problem(StoreError, "locked", "0", os.getpid()) as caught,
    ):
        supervised(store, only("a", lambda order: EXIT_LOCKED), of("a"), of("b"), rehearse=False)
    assert caught.value.exit_code == EXIT_STORE
    assert store.state("b-0") == "done"
    assert not (store.folder("a-0") / FAILURE).exists()


# --- what is shown ---


def test_progress_and_messages_are_events(store: Store) -> None:
    def tells(order: WorkerRequest) -> int:
        lines = [
            '{"step": 1, "loss": 2.5}',
            '{"message": "going on"}',
            "no JSON",
            '{"step": 3, "loss": 1.5}',
            '{"step"',
        ]
        path = Path(order.store) / order.study / order.identity / PROGRESS
        path.write_text("\n".join(lines))
        return done(order)

    _, events = supervised(store, tells, of("a"))
    assert [(event.kind, event.step, event.steps, event.loss, event.text) for event in events[:3]] == [
        ("started", 0, 0, None, "a process"),
        ("note", 0, 0, None, "going on"),
        ("progress", 3, 100, 1.5, ""),
    ]


def test_messages_of_the_launcher_are_events(store: Store) -> None:
    launcher = Acted(done)
    launcher.say(LauncherMessage("it rains"))
    assert texts(supervised(store, launcher, of("a"))[1], "note") == ["it rains"]


def test_the_scheduler_imports_no_torch() -> None:
    code = "import sys, paribus.runner.scheduler, paribus_launch; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- trials that begin from others ---


def staged(variant: str, stage: str, begins: str = "", seed: int = 0) -> Trial:
    spec = {**of(variant, seed).spec, **({"from": {"trial": begins, "learned": {}}} if begins else {})}
    return Trial(f"{variant}-{stage}", variant, seed, spec, {}, "code", "corpus", {}, stage, begins)


PRETRAIN, TUNE, AGAIN = staged("a", "pre"), staged("a", "tune", "a-pre"), staged("a", "again", "a-tune")
OTHER = staged("b", "pre")


def test_a_trial_waits_for_its_parent_and_gets_its_folder(store: Store) -> None:
    waiting: list[str] = []

    def act(order: WorkerRequest) -> End:
        if order.identity == "a-pre" and not waiting:
            waiting.append("a-pre")
            return None  # it runs on
        if order.identity == "b-pre":
            done(WorkerRequest(store=order.store, study=order.study, identity="a-pre", spec=order.spec))
            launcher._end("a-pre", 0)
        return done(order)

    launcher = Acted(act)
    supervised(store, launcher, PRETRAIN, TUNE, AGAIN, OTHER, jobs=2, rehearse=False)
    assert launcher.ran == ["a-pre", "b-pre", "a-tune", "a-again"]
    began = launcher.orders[2].spec["from"]
    assert began == {"trial": "a-pre", "learned": {}, "name": str(store.folder("a-pre").absolute())}
    assert "name" not in TUNE.spec["from"]  # where it lies is no part of the trial


def test_a_finished_parent_is_not_run_again(store: Store) -> None:
    supervised(store, done, PRETRAIN)
    launcher, _ = supervised(store, done, PRETRAIN, TUNE, rehearse=False)
    assert launcher.ran == ["a-tune"]


@pytest.mark.parametrize("state", ["diverged", "failed"])
def test_children_of_a_failed_parent_fail(store: Store, state: str) -> None:
    def act(order: WorkerRequest) -> End:
        if order.identity == "a-pre" and state == "diverged":
            folder = Path(order.store) / order.study / order.identity
            write_json(folder / RECORD, stored_record(order.identity, "diverged"))
            return 0
        return fails(order) if order.identity == "a-pre" else done(order)

    launcher, events = supervised(store, act, PRETRAIN, TUNE, AGAIN, OTHER, rehearse=False)
    assert launcher.ran == ["a-pre", "b-pre"]
    assert [store.state(name) for name in ("a-pre", "a-tune", "a-again", "b-pre")] == [state, state, state, "done"]
    reason = ": ValueError: broken" if state == "failed" else ""
    begun = f"its parent, a, pre, seed 0, ended as `{state}`{reason}"
    assert (store.failure("a-tune") or {})["reason"] == begun
    ends = {event.trial.identity: event.text for event in events if event.kind == "ended" and event.trial}
    assert ends["a-tune"] == begun
    assert ends["a-again"] == f"its parent, a, tune, seed 0, ended as `{state}`: {begun}"
    supervised(store, done, PRETRAIN, TUNE, AGAIN, OTHER, rehearse=False)  # tried again, where that may help
    expected = "diverged" if state == "diverged" else "done"
    assert [store.state(name) for name in ("a-pre", "a-tune", "a-again")] == [expected] * 3


def test_a_retried_parent_is_waited_for(store: Store) -> None:
    launcher, _ = supervised(store, in_turn(lambda order: KILL, done, done), PRETRAIN, TUNE, rehearse=False)
    assert launcher.ran == ["a-pre", "a-pre", "a-tune"]
    assert store.state("a-tune") == "done"


def test_every_stage_is_rehearsed_before_the_first_trial(store: Store) -> None:
    launcher, _ = supervised(store, done, PRETRAIN, TUNE, jobs=4)
    assert launcher.rehearsed == ["a-pre", "a-tune"]
    assert [order.spec.get("from") for order in launcher.orders[:2]] == [None, {"learned": {}}]
    assert launcher.ran == ["a-pre", "a-tune"]


def test_a_failed_rehearsal_of_one_stage_does_not_stop_others(store: Store) -> None:
    act = lambda order: fails(order) if order.is_rehearsal and order.identity == "a-tune" else done(order)  # noqa: E731  # as short as it is
    launcher, _ = supervised(store, act, PRETRAIN, TUNE, AGAIN, OTHER)
    assert launcher.ran == ["a-pre", "b-pre"]
    assert [store.state(name) for name in ("a-pre", "a-tune", "a-again", "b-pre")] == [
        "done",
        "failed",
        "failed",
        "done",
    ]


def test_parents_of_other_runners_are_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "LOCKED_SECONDS", 0.3)
    acts = in_turn(lambda order: EXIT_LOCKED, done, done)
    launcher, _ = supervised(store, acts, PRETRAIN, TUNE, rehearse=False)  # they gave it up
    assert launcher.ran == ["a-pre", "a-pre", "a-tune"]
    store.create_folder(OTHER)
    with store.lock("b-pre"), raises_problem(StoreError, "locked", "0"):
        supervised(store, lambda order: EXIT_LOCKED, OTHER, staged("b", "tune", "b-pre"), rehearse=False)
    assert store.state("b-tune") == "pending"
