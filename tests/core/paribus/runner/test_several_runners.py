"""Several runners of one study, each on a machine of its own as far as it can tell: no lock of one reaches another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.fixtures.records import stored_record

from paribus.storage.lease import HostIdentity
from paribus.storage.store import Store

TRIALS = [f"trial-{number}" for number in range(6)]

# A runner whose trials sleep: what matters is who runs them, and how often.
RUNNER = """
import os, signal, sys, time
from pathlib import Path
from paribus.storage.atomic import write_json
from paribus.storage.lease import HostIdentity, LostLeaseError
from paribus.slots.launcher import JobEnded, Launcher, JobStarted
from paribus.runner.outcomes import EXIT_LOCKED
from paribus.storage.store import Store, Trial
from paribus.runner.jobs import RunOptions
from paribus.runner.scheduler import run_trials
from paribus.runner.worker import WorkerRequest

root, host, seconds, *names = sys.argv[1:]
claimant = HostIdentity(host, host, has_flock=False, heartbeat_seconds=0.1, lease_seconds=1.5)
spec = {"seed": 0, "trainer": {"max_steps": 1}, "data": {"batch": 4}}

def work(order):
    store = Store(Path(order.store), order.study, host=claimant)
    claim = store.lock(order.identity)
    if not claim.try_acquire(order.expired_token):
        return EXIT_LOCKED
    with claim:
        if store.record(order.identity):
            return 0
        with open(Path(root) / "starts", "a") as file:
            file.write(f"{host} {order.identity}\\n")
        time.sleep(float(seconds))
        record = {**RECORD, "identity": order.identity, "by": host}
        try:
            write_json(store.folder(order.identity) / "record.json", record, files=claim.fenced_files(store.files))
        except LostLeaseError as error:
            with open(Path(root) / "lost", "a") as file:
                file.write(f"{host} {error}\\n")
            return EXIT_LOCKED
    return 0

class Forking(Launcher):
    def __init__(self): self.pids, self.told = {}, []
    def open(self, plugins): ...
    def close(self): ...
    def start(self, job):
        pid = os.fork()
        if pid == 0:
            os._exit(work(WorkerRequest.from_json(job.request)))
        self.pids[pid] = job.name
        self.told.append(JobStarted(job.name, str(pid)))
    def stop(self, name, number): ...
    def poll(self, seconds):
        told, self.told = self.told, []
        for pid in list(self.pids):
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                told.append(JobEnded(self.pids.pop(pid), 0))
        if not told:
            time.sleep(0.02)
        return told

trials = [Trial(name, name, 0, spec, {}, "code", "corpus") for name in names]
run_trials(trials, Store(Path(root), "study", host=claimant), launcher=Forking(), options=RunOptions(rehearse=False))
"""


def runner(root: Path, host: str, seconds: float, *names: str) -> subprocess.Popen[str]:
    program = f"RECORD = {stored_record('')!r}\n{RUNNER}"
    command = [sys.executable, "-c", program, str(root), host, str(seconds), *(names or TRIALS)]
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)


def starts(root: Path) -> list[list[str]]:
    path = root / "starts"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def until_started(root: Path, host: str) -> str:
    end = time.monotonic() + 60
    while not (names := [name for runner_host, name in starts(root) if runner_host == host]):
        assert time.monotonic() < end
        time.sleep(0.02)
    return names[0]


def done_by(root: Path) -> dict[str, str]:
    store = Store(root, "study")
    return {name: record["by"] for name in TRIALS if (record := store.record(name)) is not None}


def test_three_runners_share_a_study_and_run_no_trial_twice(tmp_path: Path) -> None:
    runners = [runner(tmp_path, host, 0.3) for host in "abc"]
    for process in runners:
        _, result = process.communicate(timeout=120)
        assert process.returncode == 0, result
    assert sorted(name for _, name in starts(tmp_path)) == TRIALS
    assert sorted(done_by(tmp_path)) == TRIALS


@pytest.mark.thorough
def test_a_trial_that_another_machine_runs_is_left_to_it_and_named(tmp_path: Path) -> None:
    store = Store(tmp_path, "study", host=HostIdentity("far-away", "far-away", has_flock=False, heartbeat_seconds=0.1))
    folder = store.folder(TRIALS[0])
    folder.mkdir(parents=True)
    with store.lock(TRIALS[0]):
        process = runner(tmp_path, "b", 0.0, TRIALS[0], TRIALS[1])
        _, result = process.communicate(timeout=120)
    assert process.returncode != 0
    assert f"trial {TRIALS[0]}, seed 0 is run by process {os.getpid()} on far-away since" in result
    assert starts(tmp_path) == [["b", TRIALS[1]]]
    assert not (folder / "failure.json").exists()


@pytest.mark.faults
def test_the_trials_of_a_machine_that_died_are_taken_over_once(tmp_path: Path) -> None:
    first_runner = runner(tmp_path, "a", 30)
    lost = until_started(tmp_path, "a")
    other_runners = [runner(tmp_path, host, 0.2) for host in "bcd"]
    os.killpg(first_runner.pid, signal.SIGKILL)
    first_runner.communicate()
    for process in other_runners:
        _, result = process.communicate(timeout=120)
        assert process.returncode == 0, result
    assert Counter(name for _, name in starts(tmp_path)) == {name: 2 if name == lost else 1 for name in TRIALS}
    assert set(done_by(tmp_path)) == set(TRIALS)
    assert done_by(tmp_path)[lost] in "bcd"


@pytest.mark.faults
def test_a_runner_whose_lease_expired_writes_nothing(tmp_path: Path) -> None:
    slow = runner(tmp_path, "a", 1.0, TRIALS[0])
    until_started(tmp_path, "a")
    os.killpg(slow.pid, signal.SIGSTOP)
    other_runner = runner(tmp_path, "b", 0.0, TRIALS[0])
    _, result = other_runner.communicate(timeout=120)
    assert other_runner.returncode == 0, result
    record = tmp_path / "study" / TRIALS[0] / "record.json"
    document = json.loads(record.read_bytes())
    os.killpg(slow.pid, signal.SIGCONT)
    _, result = slow.communicate(timeout=120)
    assert slow.returncode == 0, result
    assert json.loads(record.read_bytes()) == document
    assert document["body"]["by"] == "b"
    assert (tmp_path / "lost").read_text().startswith("a ")
