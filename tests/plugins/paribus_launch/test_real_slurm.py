"""A study on a real Slurm (`make test-slurm` starts one): the records of local trials, also after a requeue."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.plugins.paribus_launch.conftest import check_program_study

import paribus
from paribus.storage.atomic import digest_json
from paribus.storage.store import Store

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]

LAUNCHER = {"name": "slurm", "partition": "main", "cpus": 1, "memory": 4, "minutes": 20}


@pytest.fixture(scope="module", autouse=True)
def slurm() -> None:
    if shutil.which("sinfo") is None or subprocess.run(["sinfo"], capture_output=True, check=False).returncode:
        pytest.skip("no Slurm answers on this machine: `make test-slurm` starts one")
    pytest.importorskip("submitit")


@pytest.fixture
def write_study(tmp_path: Path) -> Callable[..., Path]:
    """Write the same study for a launcher, with a baseline and a variant, and return its path."""
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text(f"{number}. The cat sat on the mat. It was warm. " * (number % 3 + 4))

    def write(name: str, launcher: Mapping[str, Any], *, steps: int, seeds: int) -> Path:
        base = {
            "preset": "gpt-tiny",
            "dims": {"width": 16, "layers": 1, "heads": 4, "length": 16},
            "dropout": 0.1,
            "tokenizer": "bytes",
            "corpus": {"name": "text", "path": [f"{tmp_path}/*.txt"]},
            "data": {"batch": 4, "validation": 8},
        }
        metric = {"name": "val/clm/loss", "better": "lower"}
        document = {
            "base": base,
            "vary": {"attention": ["mqa"]},
            "seeds": seeds,
            "metric": metric,
            "budget": {"steps": steps},
        }
        document["launcher"] = launcher
        path = tmp_path / name / "study.yaml"
        path.parent.mkdir()
        path.write_text(json.dumps(document))  # JSON is YAML
        return path

    return write


def results(store: Store) -> dict[str, str]:
    """Return a digest of the result of each trial."""
    return {record["identity"]: digest_json(record["result"]) for record in store.records()}


def wait_until(condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def runner() -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Start `paribus run STUDY` in a process of its own; it is interrupted at the end if it still runs."""
    processes = []

    def start(path: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "paribus", "run", str(path), "--jobs", "2", "--no-timing"]
        process = subprocess.Popen([*command, "--store", str(path.parent / "runs")], env={**os.environ})
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait()


def running_jobs() -> list[str]:
    """Return the ids of the jobs of this test that run now."""
    command = ["squeue", "--noheader", "--name=paribus", "--states=RUNNING", "--format=%i"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def restart(job: str) -> bool:
    """Return True once a requeued job runs again; Slurm would wait two minutes to start it."""
    subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=False, capture_output=True)
    command = ["scontrol", "show", "job", job]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return "Restarts=1" in shown and "JobState=RUNNING" in shown


def test_records_equal_those_of_local_trials_also_after_a_requeue(
    write_study: Callable[..., Path], runner: Callable[[Path], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    local = paribus.study(
        write_study("local", {"name": "local"}, steps=1000, seeds=2), store=tmp_path / "local" / "runs"
    )
    paribus.run(local, jobs=2)
    expected = results(local.store)
    assert len(expected) == 4
    path = write_study("cluster", LAUNCHER, steps=1000, seeds=2)
    process = runner(path)
    runs = path.parent / "runs"
    wait_until(lambda: any('"step": 1' in file.read_text() for file in runs.glob("*/*/progress.jsonl")))
    (job, *_) = running_jobs()
    subprocess.run(["scontrol", "requeue", job], check=True)
    wait_until(lambda: restart(job))
    assert process.wait(timeout=600) == 0
    assert results(Store(runs, "cluster")) == expected


def test_a_cancelled_job_ends_the_trial_as_interrupted(
    write_study: Callable[..., Path], runner: Callable[[Path], subprocess.Popen[bytes]]
) -> None:
    path = write_study("cluster", LAUNCHER, steps=1500, seeds=1)
    process = runner(path)
    runs = path.parent / "runs"
    wait_until(lambda: len(list(runs.glob("*/*/progress.jsonl"))) == 2)
    for job in running_jobs():
        subprocess.run(["scancel", job], check=True)
    assert process.wait(timeout=300) != 0
    assert results(Store(runs, "cluster")) == {}


def test_a_killed_study_of_a_program_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_program_study(LAUNCHER, tmp_path, monkeypatch)
