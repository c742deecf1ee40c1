"""Whole runs, in processes of their own, that are killed: nobody is orphaned, and run again they come to the same."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from paribus.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_STORE, EXIT_TERMINATED
from paribus.registry import Registry
from paribus.runner.processes import process_environment
from paribus.storage.atomic import canonical_json
from paribus.storage.store import Store, Trial
from paribus.train.trial import TrialContext, run_trial

RUNNER = """
import json, sys
from pathlib import Path
from paribus.errors import ParibusError
from paribus.slots.launcher import Plugins
from paribus.runner.signals import StopRequest, catch_signals
from paribus.storage.store import Store, Trial
from paribus.runner.jobs import RunOptions
from paribus.runner.scheduler import run_trials
from paribus.train.trial_options import TrialOptions
from paribus_launch.local import Local

root, trials, rules, fork = sys.argv[1:]
rules = json.loads(rules)
options = RunOptions(**{**rules, "trial": TrialOptions(**rules.get("trial", {}))})
launcher = Local(fork=fork == "True")
launcher.open(Plugins())

def show(event):
    print(event.kind, event.trial.identity if event.trial else "-", event.text, flush=True)

try:
    with catch_signals(StopRequest()) as stop:
        run_trials(
            [Trial(**each) for each in json.loads(trials)], Store(Path(root), "study"),
            launcher=launcher, options=options, on_event=show, stop=stop,
            resume="paribus run study",
        )
except ParibusError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
finally:
    launcher.close()
"""
STEPS = 40
SEEDS = (0, 1, 2)

Run = Callable[..., "subprocess.Popen[str]"]

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def trials(trial: Callable[..., Trial]) -> list[Trial]:
    return [trial(seed=seed, steps=STEPS) for seed in SEEDS]


@pytest.fixture(scope="module")
def uncut(trials: list[Trial], registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp
    return [
        canonical_json(run_trial(study.spec, registry, TrialContext("x", folder("x")))["result"]) for study in trials
    ]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, "study")


@pytest.fixture
def run(tmp_path: Path, trials: list[Trial]) -> Iterator[Run]:
    """Starts a run of the study, in a group of processes of its own."""
    begun: list[subprocess.Popen[str]] = []

    def start(*, fork: bool = True, **rules: Any) -> subprocess.Popen[str]:
        documents = json.dumps([dataclasses.asdict(trial) for trial in trials])
        process = subprocess.Popen(
            [sys.executable, "-c", RUNNER, str(tmp_path), documents, json.dumps({"jobs": 2, **rules}), str(fork)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=process_environment(),
            start_new_session=True,
        )
        begun.append(process)
        return process

    yield start
    for process in begun:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def results(store: Store, trials: list[Trial]) -> list[bytes]:
    by_identity = [store.record(trial.identity) for trial in trials]
    return [canonical_json(record["result"]) for record in by_identity if record is not None]


def until(process: subprocess.Popen[str], kind: str, count: int = 1) -> list[str]:
    """Reads what a run tells, up to the count-th line of that kind."""
    assert process.stdout is not None
    result: list[str] = []
    while len(result) < count:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        if line.startswith(kind):
            result.append(line.strip())
    return result


def family(pid: int) -> list[int]:
    """A process and all that come from it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, parent, *_ = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    pids, pending = [], [pid]
    while pending:
        pids.append(pending.pop())
        pending += children.get(pids[-1], [])
    return pids


def fork_server(pid: int) -> int:
    """Return the process that forks the trials, and not the one that rehearses in the other environment."""
    servers = [
        child
        for child in family(pid)[1:]
        if b"fork_server_main" in Path(f"/proc/{child}/cmdline").read_bytes()
        and b"PYTHONHASHSEED=0" in Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    ]
    return min(servers)  # started before its trials, which have its command


def alive(pids: list[int], seconds: float = 10.0) -> list[int]:
    """Return the processes that have not ended after this time."""
    end = time.monotonic() + seconds
    while (running := [pid for pid in pids if _alive(pid)]) and time.monotonic() < end:
        time.sleep(0.02)
    return running


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("number", "code", "name"),
    [
        (signal.SIGINT, EXIT_INTERRUPTED, "Ctrl-C"),
        (signal.SIGTERM, EXIT_TERMINATED, "SIGTERM"),
        (signal.SIGHUP, EXIT_TERMINATED, "SIGHUP"),
    ],
)
def test_a_stopped_run_names_the_command_that_resumes_it(
    run: Run, store: Store, trials: list[Trial], uncut: list[bytes], number: signal.Signals, code: int, name: str
) -> None:
    process = run()
    until(process, "progress", 2)
    everybody = family(process.pid)
    os.killpg(process.pid, number)  # as a terminal does it
    _, output = process.communicate(timeout=60)
    assert process.returncode == code
    assert f"stopped by {name}; nothing is lost; to go on: paribus run study" in output
    assert alive(everybody, 0.5) == []
    assert run().wait(120) == EXIT_OK
    assert results(store, trials) == uncut


def test_a_second_signal_ends_the_run_at_once_and_loses_nothing(
    run: Run, store: Store, trials: list[Trial], uncut: list[bytes]
) -> None:
    process = run()
    until(process, "progress")
    everybody = family(process.pid)
    for trial in everybody[1:]:
        with suppress(ProcessLookupError):
            os.kill(trial, signal.SIGSTOP)  # so that no trial can end politely
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.8)
    assert process.poll() is None
    for server in everybody[1:2]:
        os.kill(server, signal.SIGCONT)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == EXIT_INTERRUPTED
    assert alive(everybody) == []
    assert run().wait(120) == EXIT_OK
    assert results(store, trials) == uncut


def test_a_killed_scheduler_leaves_no_orphan(run: Run, store: Store, trials: list[Trial], uncut: list[bytes]) -> None:
    process = run(trial={"checkpoint_steps": 3})
    until(process, "progress", 2)
    everybody = family(process.pid)
    assert len(everybody) >= 3
    process.kill()
    assert alive(everybody) == []
    assert run().wait(120) == EXIT_OK
    assert results(store, trials) == uncut


def test_records_are_the_same_without_forking(run: Run, store: Store, trials: list[Trial], uncut: list[bytes]) -> None:
    process = run(fork=False)
    until(process, "progress", 2)
    everybody = family(process.pid)
    process.kill()
    assert alive(everybody) == []
    assert run(fork=False).wait(120) == EXIT_OK
    assert results(store, trials) == uncut


def test_a_killed_fork_server_is_replaced_within_the_run(
    run: Run, store: Store, trials: list[Trial], uncut: list[bytes]
) -> None:
    process = run(trial={"checkpoint_steps": 3})
    until(process, "progress", 2)
    os.kill(fork_server(process.pid), signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == EXIT_OK
    assert "ended with signal 9 (SIGKILL); it is started again" in output
    assert results(store, trials) == uncut


def test_two_runs_of_one_store_run_each_trial_once(
    run: Run, store: Store, trials: list[Trial], uncut: list[bytes]
) -> None:
    both = [run(jobs=1), run(jobs=1)]
    output = [process.communicate(timeout=120) for process in both]
    # 5: the other one still ran the last
    assert {process.returncode for process in both} <= {EXIT_OK, EXIT_STORE}, output
    assert EXIT_OK in {process.returncode for process in both}
    assert results(store, trials) == uncut
    records = [store.record(trial.identity) for trial in trials]
    assert len({record["provenance"]["pid"] for record in records if record is not None}) == len(trials)
    for trial in trials:
        log = (store.folder(trial.identity) / "progress.jsonl").read_text()
        assert log.count(f'"step": {STEPS},') == 1, output


@pytest.mark.timeout(1800)
def test_kills_at_random_moments_change_nothing(
    run: Run, store: Store, trials: list[Trial], uncut: list[bytes], record_property: Callable[[str, object], None]
) -> None:
    luck = random.Random(20_260)
    kills = 0
    while kills < 20:
        if len(results(store, trials)) == len(trials):
            victim = store.folder(luck.choice(trials).identity)
            (victim / "record.json").unlink()  # there is nothing left to cut: some of it is run once more
        process = run(trial={"checkpoint_steps": luck.choice([1, 2, 5])})
        with suppress(AssertionError):
            until(process, "started", luck.choice([1, 2]))
        time.sleep(luck.uniform(0.0, 1.0))
        everybody = family(process.pid)
        with suppress(ProcessLookupError):
            os.kill(luck.choice([process.pid, *everybody]), signal.SIGKILL)
        kills += 1
        if luck.random() < 0.5:
            process.kill()
        process.communicate(timeout=120)
        assert alive(everybody) == []
    assert run().wait(120) == EXIT_OK
    assert results(store, trials) == uncut
    record_property("kill -9 survived", kills)
