"""kill -9 of trials at random times, and of the supervisor before each of its writes."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import pytest
from tests.fixtures.records import stored_record

from paribus.registry import Registry
from paribus.runner.jobs import RunOptions
from paribus.runner.processes import ForkServer
from paribus.runner.progress import Event
from paribus.runner.scheduler import run_trials
from paribus.runner.worker import WorkerRequest
from paribus.slots.launcher import Job, JobEnded, JobStarted, Launcher, LauncherEvent, Plugins
from paribus.storage.atomic import FILES, canonical_json, write_json
from paribus.storage.saved_model import RECORD
from paribus.storage.store import Store, Trial
from paribus.train.trial import TrialContext, run_trial
from paribus.train.trial_options import TrialOptions

STEPS = 200
KILLS = 40

MakeTrial = Callable[..., Trial]
Property = Callable[[str, object], None]


@pytest.mark.faults
@pytest.mark.held("D4", "D8")
def test_trials_killed_forty_times_at_random_have_the_same_results(
    trial: MakeTrial, registry: Registry, tmp_path: Path, record_property: Property
) -> None:
    trials = [trial(seed=seed, steps=STEPS) for seed in (0, 1)]
    expected = []
    for item in trials:
        (tmp_path / item.identity).mkdir()
        record = run_trial(item.spec, registry, TrialContext("x", tmp_path / item.identity))
        expected.append(canonical_json(record["result"]))
    rng = random.Random(20_261)
    kills: list[int] = []

    def kill_later(event: Event) -> None:
        """Kill each process a random time after its start."""
        if event.kind == "started" and len(kills) < KILLS:
            pid = int("".join(filter(str.isdigit, event.text)))
            threading.Timer(rng.uniform(0.05, 1.0), kill_trial, (pid, kills)).start()

    server = ForkServer()
    server.open(Plugins())
    try:
        options = RunOptions(jobs=2, retries=10_000, rehearse=False, trial=TrialOptions(checkpoint_steps=1))
        for number in range(KILLS):  # a fast machine finishes before enough kills, and starts a new study
            store = Store(tmp_path, f"study-{number}")
            run_trials(trials, store, launcher=server, options=options, on_event=kill_later)  # type: ignore[arg-type]  # it has the methods of a launcher
            outcome = [store.record(item.identity) for item in trials]
            assert [canonical_json(record["result"]) for record in outcome if record is not None] == expected
            if len(kills) >= KILLS:
                break
    finally:
        server.close()
    assert len(kills) >= KILLS
    record_property("kill -9 survived", len(kills))


def kill_trial(pid: int, kills: list[int]) -> None:
    """Kill a trial's process; its pid may have been reused, so other processes are left alone."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return
    if b"paribus" in command:
        os.kill(pid, signal.SIGKILL)
        kills.append(pid)


@final
class InstantLauncher(Launcher):
    """Launcher whose trials write a record or a failure at once, and log their identity."""

    def __init__(self, ran: Path) -> None:
        self.ran = ran
        self.events: deque[LauncherEvent] = deque()

    def open(self, plugins: Plugins) -> None: ...

    def start(self, job: Job) -> None:
        request = WorkerRequest.from_json(job.request)
        store = Store(Path(request.store), request.study)
        with self.ran.open("a") as file:
            file.write(f"{request.identity}\n")
        if request.spec["seed"] % 2:
            store.write_failure(request.identity, "failed", "ValueError: broken")
        else:
            write_json(store.folder(request.identity) / RECORD, stored_record(request.identity))
        self.events += [JobStarted(job.name, "here"), JobEnded(job.name, request.spec["seed"] % 2, None, "")]

    def poll(self, seconds: float) -> Sequence[LauncherEvent]:
        return [self.events.popleft()] if self.events else []

    def stop(self, name: str, signal: int) -> None: ...

    def close(self) -> None: ...


def study(root: Path, *, kill_at: int | None) -> list[Trial]:
    """Run four trials, of which two fail; the supervisor is killed before its k-th write."""
    calls = itertools.count()

    def kill_at_call(name: str) -> None:
        if next(calls) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    specs = [{"seed": seed, "trainer": {"max_steps": 1}, "data": {"batch": 4}} for seed in range(4)]
    trials = [Trial(f"base-{seed}", "base", seed, spec, {}, "code", "corpus") for seed, spec in enumerate(specs)]
    store = Store(root, "study", FILES if kill_at is None else FILES.with_callback(kill_at_call))
    run_trials(trials, store, launcher=InstantLauncher(root / "ran"), options=RunOptions(rehearse=False))
    return trials


@pytest.mark.faults
@pytest.mark.held("D8")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the child starts no thread
def test_a_supervisor_killed_before_any_write_loses_and_repeats_no_trial(
    tmp_path: Path, record_property: Property
) -> None:
    kills = 0
    for k in itertools.count():
        root = tmp_path / str(k)
        root.mkdir()
        child = os.fork()
        if child == 0:
            try:
                study(root, kill_at=k)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        kills += os.WIFSIGNALED(status)
        earlier_runs = Counter((root / "ran").read_text().split() if (root / "ran").exists() else ())
        trials = study(root, kill_at=None)
        store = Store(root, "study")
        assert [store.state(item.identity) for item in trials] == ["done", "failed", "done", "failed"], k
        all_runs = Counter((root / "ran").read_text().split())
        assert all(all_runs[item.identity] == 1 for item in trials if item.seed % 2 == 0), (k, all_runs)
        assert all(all_runs[item.identity] == 1 + earlier_runs[item.identity] for item in trials if item.seed % 2), (
            k,
            all_runs,
        )
        if not os.WIFSIGNALED(status):
            break
    assert kills > 20
    record_property("kill -9 survived", kills)
